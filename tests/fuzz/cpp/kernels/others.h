// Cases of pools, elements, shuffles, attention and sequences.
#pragma once

#include "cases.h"
#include "kernels/attention.h"
#include "kernels/sequence.h"

namespace rlopt::fuzz {

inline void pool(Case& given) {
  Draw& draw = given.draw;
  Geometry made = any_window(draw);
  Window& window = made.window;
  made.channels = window.out_channels = draw.between(8, 40);
  const auto kind = static_cast<Pool>(draw.between(0, kNumPools - 1));
  if (kind != Pool::kMax) window.dilation_y = window.dilation_x = 1;
  window.pad_y = window.pad_below = draw.between(0, window.kernel_height / 2);
  window.pad_x = window.pad_behind = draw.between(0, window.kernel_width / 2);
  const bool is_ceiled = draw.once_in(2);
  const Shape shape =
      image(draw, {made.images, made.channels, made.height, made.width}, given.element, false);
  given.begin("pool" + made.text() + text_of("kind", {static_cast<int64_t>(kind)}) +
              text_of("ceiled", {is_ceiled}) + text_of("threads", {given.num_threads}));
  const Element written = result_element(draw, given.element);
  std::optional<Call> call = pool_of(shape, window, is_ceiled, {{}, written});
  if (!call || call->result.size() > 40000) return;
  const Tensor in = tensor(draw, shape);
  const Shape result = call->result;
  const Room room(draw, *call);
  compute(given, pool_work(call->given, kind, given.num_threads),
          {in.memory.data(), nullptr, nullptr, room.begin()});
  for_each_place(result, [&](int64_t n, int64_t c, int64_t y, int64_t x, const std::string& where) {
    const Sum sum = pooled(in, window, kind, n, c, y, x);
    if (std::isnan(sum.value)) return;  // no pixel
    compare(room.at(n, c, y, x), sum, 1e-5, written, where);
  });
}

inline void pointwise(Case& given) {
  Draw& draw = given.draw;
  const std::vector<int64_t> sizes{draw.of({0, 1, 2, 3}), draw.between(1, 40), draw.between(1, 9),
                                   draw.between(1, 9)};
  const auto kind = static_cast<Pointwise>(draw.between(0, kNumPointwise - 1));
  const Shape shape = image(draw, sizes, given.element, false);
  const Shape other = kind == Pointwise::kScale ? channels_last(sizes[0], sizes[1], 1, 1, given.element)
                                                : image(draw, sizes, given.element, false);
  const Epilogue after = epilogue(draw);
  given.begin("pointwise" + text_of("image", {sizes[0], sizes[1], sizes[2], sizes[3]}) +
              text_of("kind", {static_cast<int64_t>(kind)}) + text_of("threads", {given.num_threads}));
  const Element written = result_element(draw, given.element);
  std::optional<Call> call =
      pointwise_of(shape, kind == Pointwise::kActivate ? nullptr : &other, kind, after, {{}, written});
  if (!call) return;
  const Tensor in = tensor(draw, shape), second = tensor(draw, other);
  const Shape result = call->result;
  const Room room(draw, *call);
  compute(given, pointwise_work(call->given, kind, given.num_threads),
          {in.memory.data(), nullptr, kind == Pointwise::kActivate ? nullptr : second.memory.data(),
           room.begin()});
  for_each_place(result, [&](int64_t n, int64_t c, int64_t y, int64_t x, const std::string& where) {
    double value = in.at(n, c, y, x), size = std::abs(value);
    if (kind == Pointwise::kAdd) value += second.at(n, c, y, x), size += std::abs(second.at(n, c, y, x));
    if (kind == Pointwise::kMultiply) value *= second.at(n, c, y, x), size = std::abs(value);
    if (kind == Pointwise::kScale) value *= second.at(n, c, 0, 0), size = std::abs(value);
    value = activated(value, after.activation, after.low, after.high);
    compare(room.at(n, c, y, x), {value, 1.5 * size + std::abs(value)}, 1e-5, written, where);
  });
}

inline void shuffle(Case& given) {
  Draw& draw = given.draw;
  const int64_t groups = draw.between(1, 5), size = draw.between(1, 20);
  const Shape shape = image(draw, {draw.of({0, 1, 2}), groups * size, draw.between(1, 7), draw.between(1, 9)},
                            given.element, false);
  given.begin("shuffle" + text_of("image", {shape.sizes[0], shape.sizes[1], shape.sizes[2], shape.sizes[3]}) +
              text_of("groups", {groups}) + text_of("threads", {given.num_threads}));
  std::optional<Call> call = shuffle_of(shape, groups);
  if (!call) return;
  const Tensor in = tensor(draw, shape);
  const Shape result = call->result;
  const Room room(draw, *call);
  compute(given, shuffle_work(call->given, given.num_threads),
          {in.memory.data(), nullptr, nullptr, room.begin()});
  for_each_place(result, [&](int64_t n, int64_t c, int64_t y, int64_t x, const std::string& where) {
    compare(room.at(n, c, y, x), {in.at(n, c % groups * size + c / groups, y, x), 0}, 0, given.element,
            where);
  });
}

inline void attention(Case& given) {
  Draw& draw = given.draw;
  const int64_t batches = draw.of({1, 2}), key_heads = draw.of({1, 2}), heads = key_heads * draw.of({1, 2});
  const int64_t queries = draw.of({8, 9, 28, 29, 57, 65}),
                keys = draw.of({1, 2, 7, 15, 16, 17, 33, 64, 65, 100});
  const int64_t size =
      draw.of({2, 8, 16, 18, 32, 64}) + (given.element == Element::kFloat32 ? draw.between(0, 1) : 0);
  const int64_t values = draw.of({1, 2, 8, 15, 16, 17, 33, 64});
  const auto shape = [&](int64_t a, int64_t b, int64_t c, int64_t d) {
    Shape made = contiguous({a, b, c, d});
    made.element = given.element;
    return made;
  };
  const bool is_causal = draw.once_in(3), has_mask = !is_causal && draw.once_in(2),
             is_by_heads = draw.once_in(2);
  const Shape q = shape(batches, heads, queries, size), k = shape(batches, key_heads, keys, size),
              v = shape(batches, key_heads, keys, values),
              m = shape(draw.of({1, batches}), draw.of({1, heads}), draw.of({1, queries}),
                        draw.of({1, keys}));
  given.begin("attention" + text_of("sizes", {batches, heads, key_heads, queries, keys, size, values}) +
              text_of("causal", {is_causal}) + text_of("mask", {has_mask}) +
              text_of("threads", {given.num_threads}));
  constexpr float kScale = 0.3F;
  std::optional<AttentionCall> call =
      attention_of(q, k, v, has_mask ? &m : nullptr, is_causal, kScale, is_by_heads);
  if (!call) return;
  const auto normal = [&](const Shape& of) {
    Tensor made = empty(draw, of);
    for (int64_t i = 0; i < span_of(of); ++i) made.put(i, draw.number());
    return made;
  };
  const Tensor in_q = normal(q), in_k = normal(k), in_v = normal(v), mask = normal(m);
  const Tensor out = empty(draw, call->result);
  Attention& work = call->given;
  work.q.data = in_q.memory.data(), work.k.data = in_k.memory.data(), work.v.data = in_v.memory.data();
  work.mask.data = has_mask ? mask.memory.data() : nullptr;
  work.out = out.memory.data();
  attend(work, given.num_threads);
  std::vector<double> weights(static_cast<size_t>(keys));
  for_each_place(shape(batches, heads, queries, 1), [&](int64_t n, int64_t h, int64_t row, int64_t,
                                                        const std::string& where) {
    const int64_t of_keys = h / (heads / key_heads), seen = is_causal ? std::min(keys, row + 1) : keys;
    double most = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t key = 0; key < seen; ++key) {
      double score = 0;
      for (int64_t i = 0; i < size; ++i) score += in_q.at(n, h, row, i) * in_k.at(n, of_keys, key, i);
      score *= kScale;
      const auto at = [](int64_t place, int64_t length) { return length == 1 ? 0 : place; };
      if (has_mask)
        score += mask.at(at(n, m.sizes[0]), at(h, m.sizes[1]), at(row, m.sizes[2]), at(key, m.sizes[3]));
      weights[static_cast<size_t>(key)] = score;
      most = std::max(most, score);
    }
    for (int64_t key = 0; key < seen; ++key) {
      double& weight = weights[static_cast<size_t>(key)];
      total += weight = std::exp(weight - most);
    }
    for (int64_t i = 0; i < values; ++i) {
      Sum sum;
      for (int64_t key = 0; key < seen; ++key)
        sum.add(weights[static_cast<size_t>(key)] / total * in_v.at(n, of_keys, key, i));
      // Errors of scores, of size 10 or so, are in the exponentials.
      compare(out.at(n * work.heads * queries * values + h * work.of_out_head + row * work.of_out_row + i),
              sum, lost_by(given.element, 3e-5), given.element, where);
    }
  });
}

/// A convolution, a pool, what is pointwise, and a product of each pixel's channels, as one call; compared
/// with the same calls by themselves.
inline void sequence(Case& given) {
  Draw& draw = given.draw;
  const int64_t images = draw.of({1, 2, 3, 5}), channels = draw.of({8, 16, 24}),
                outputs = draw.of({8, 17, 32, 48});
  const int64_t height = draw.between(3, 12), width = draw.between(3, 12);
  const Shape shape = channels_last(images, channels, height, width, given.element);
  const Window window{outputs, 3, 3, draw.of({1, 2}), 1, 1, 1, 1, 1, 1, 1},
      own{outputs, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1};
  const Method method =
      can_have_tiles(convolution_of(shape, nullptr, window, 1, Method::kSums, {})->given) && draw.once_in(2)
          ? Method::kTiles2
          : Method::kSums;
  const bool is_depthwise = draw.once_in(2);
  given.begin("sequence" + text_of("image", {images, channels, height, width}) +
              text_of("outputs", {outputs}) + text_of("stride", {window.stride_y}) +
              text_of("method", {static_cast<int64_t>(method)}) + text_of("depthwise", {is_depthwise}) +
              text_of("threads", {given.num_threads}));
  const Epilogue relu{Activation::kRelu, 0, 0};
  const auto packed = [&](const WeightLayout& layout) {
    const Memory weight = floats(
        draw, layout.out_channels * (layout.in_channels / layout.groups) * layout.num_taps(), layout.element);
    Memory made(packed_size(layout) * sizeof(float), draw.once_in(2));
    pack(weight.floats(), nullptr, layout, 1, made.floats());
    return made;
  };
  // The type of each result; the next call reads it.
  Element types[3];
  types[0] = result_element(draw, given.element);
  types[1] = result_element(draw, types[0]);
  types[2] = result_element(draw, types[1]);
  const std::optional<Call> first = convolution_of(shape, nullptr, window, 1, method, relu, {{}, types[0]});
  const Shape between = first->result;
  const std::optional<Call> second =
      is_depthwise ? convolution_of(between, nullptr, own, outputs, Method::kSums, relu, {{}, types[1]})
                   : pool_of(between, own, false, {{}, types[1]});
  const Shape last = second->result;
  const std::optional<Call> third = pointwise_of(last, &last, Pointwise::kAdd, relu, {{}, types[2]});
  const Memory weight = packed(weight_layout(first->given));
  const Memory taps = is_depthwise ? packed(weight_layout(second->given)) : Memory(0, true);
  const auto of_floats = [](const Memory& memory) {
    return contiguous({static_cast<int64_t>(memory.size() / sizeof(float))});
  };
  // Inputs: the image, the weight, the taps.
  std::vector<Instruction> instructions(3);
  instructions[0].operation = Operation::kConvolve;
  instructions[0].in = 0, instructions[0].packed = 1;
  instructions[0].window = window, instructions[0].method = method, instructions[0].epilogue = relu;
  instructions[1].operation = is_depthwise ? Operation::kConvolve : Operation::kPool;
  instructions[1].in = 3, instructions[1].window = own;
  if (is_depthwise)
    instructions[1].packed = 2, instructions[1].groups = outputs, instructions[1].epilogue = relu;
  instructions[2].operation = Operation::kPointwise;
  instructions[2].in = instructions[2].other = 4;
  instructions[2].pointwise = Pointwise::kAdd, instructions[2].epilogue = relu;
  for (size_t i = 0; i < 3; ++i) instructions[i].types.result = types[i];
  std::vector<int> results{5};
  if (draw.once_in(2)) results.push_back(3);
  Sequence all(3, instructions, results);
  if (draw.once_in(2)) all.take_images({draw.between(0, 3), draw.between(0, 3), draw.between(0, 3)});
  const auto schedule = all.schedule({shape, of_floats(weight), of_floats(taps)}, given.num_threads);
  if (schedule == nullptr) fail("a sequence of images in channels_last was not scheduled");
  const Tensor in = tensor(draw, shape);
  std::vector<Tensor> outs;
  std::vector<char*> memory{in.memory.data(), weight.data(), taps.data()};
  for (const Shape& each : schedule->outputs()) {
    outs.push_back(empty(draw, each));
    memory.push_back(outs.back().memory.data());
  }
  const Memory arena(static_cast<size_t>(schedule->arena()) * sizeof(float), draw.once_in(2));
  memory.push_back(arena.data());
  schedule->run(memory.data());
  const Tensor a = empty(draw, between), b = empty(draw, last), c = empty(draw, third->result);
  compute(given, convolution_work(first->given, given.num_threads),
          {in.memory.data(), weight.floats(), nullptr, a.memory.data()});
  compute(given,
          is_depthwise ? convolution_work(second->given, given.num_threads)
                       : pool_work(second->given, Pool::kMax, given.num_threads),
          {a.memory.data(), taps.floats(), nullptr, b.memory.data()});
  compute(given, pointwise_work(third->given, Pointwise::kAdd, given.num_threads),
          {b.memory.data(), nullptr, b.memory.data(), c.memory.data()});
  const auto same = [&](const Tensor& got, const Tensor& expected) {
    double most = 0, lost = 1e-4;  // tiles round elsewhere in other chunks, and so do results in between
    for (const Element each : types) lost += lost_by(each, 0);
    for (int64_t i = 0; i < span_of(expected.shape); ++i) most = std::max(most, std::abs(expected.at(i)));
    for (int64_t i = 0; i < span_of(expected.shape); ++i)
      compare(got.at(i), {expected.at(i), most}, lost, expected.shape.element, text_of("element", {i}));
  };
  same(outs[0], c);
  if (outs.size() > 1) same(outs[1], a);
}

}  // namespace rlopt::fuzz
