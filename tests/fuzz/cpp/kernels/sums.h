// Cases of convolutions and products.
#pragma once

#include "cases.h"

namespace rlopt::fuzz {

inline void convolution(Case& given, Geometry geometry, bool may_lie_anyhow) {
  Draw& draw = given.draw;
  const Window& window = geometry.window;
  if (!takes_groups(window.out_channels, geometry.channels, geometry.groups, given.element)) return;
  const std::vector<int64_t> sizes{geometry.images, geometry.channels, geometry.height, geometry.width};
  const Element read = operand_element(draw, given.element), written = result_element(draw, given.element);
  const Shape shape = image(draw, sizes, read, may_lie_anyhow);
  Epilogue after = epilogue(draw);
  given.begin("convolution" + geometry.text() +
              text_of("strides", {shape.strides[0], shape.strides[1], shape.strides[2], shape.strides[3]}) +
              text_of("threads", {given.num_threads}) +
              text_of("types", {static_cast<int64_t>(read), static_cast<int64_t>(written)}) +
              text_of("activation", {static_cast<int64_t>(after.activation)}));
  const auto made = [&](const Shape* summand) {
    return convolution_of(shape, summand, window, geometry.groups, geometry.method, after,
                          {given.element, written});
  };
  std::optional<Call> call = made(nullptr);
  if (!call) return;
  const Shape result = call->result;
  if (result.size() > 40000) return;
  Tensor in = tensor(draw, shape);
  const int64_t terms = geometry.channels / geometry.groups * window.kernel_height * window.kernel_width;
  const Memory weight = floats(draw, window.out_channels * terms, given.element),
               bias = floats(draw, window.out_channels);
  const bool has_bias = !draw.once_in(3), has_summand = draw.once_in(3);
  const WeightLayout layout = weight_layout(call->given);
  const Memory packed(packed_size(layout) * sizeof(float), draw.once_in(2));
  pack(weight.floats(), has_bias ? bias.floats() : nullptr, layout, given.num_threads, packed.floats());
  std::optional<Tensor> summand;
  if (has_summand) {
    summand = tensor(draw, result);
    call = made(&result);
    if (!call) fail("an image as the result is no summand");
  }
  const Room room(draw, *call);
  const Work work = convolution_work(call->given, given.num_threads);
  const Operands operands{in.memory.data(), packed.floats(), has_summand ? summand->memory.data() : nullptr,
                          room.begin()};
  compute(given, work, operands);
  compare_units(given, work, operands, room.whole);
  // Tiles may lose so much of the terms that lie under them, sums what float32 loses of their own.
  double share = has_tiles(geometry.method) ? 1e-3 : 1e-5;
  if (read != given.element) share = kLostByHalf;
  const double lost = quantised(geometry.method, in, terms);
  for_each_place(result, [&](int64_t n, int64_t c, int64_t y, int64_t x, const std::string& where) {
    Sum sum = convolved(in, weight.floats(), has_bias ? bias.floats() : nullptr, window, geometry.groups, n,
                        c, y, x);
    if (has_summand) sum.add(summand->at(n, c, y, x));
    // An activation makes errors one and a half times as large at most, and rounds itself.
    const double value = activated(sum.value, after.activation, after.low, after.high);
    compare(room.at(n, c, y, x), {value, 1.5 * sum.size + std::abs(value)}, share, written, where, lost);
  });
  if (room.whole.shape.sizes[1] > result.sizes[1]) room.check_the_rest(result.sizes[1]);
}

/// A method for the matrix unit.
inline Method in_unit(Draw& draw, Element element) {
  if (element == Element::kBfloat16) return Method::kBf16;
  return draw.once_in(2) ? Method::kBf16x3 : Method::kBf16x2;
}

inline void dense(Case& given) {
  Geometry made = any_window(given.draw);
  made.channels = given.draw.of({8, 9, 15, 16, 17, 33, 64, 130});
  made.window.out_channels = given.draw.of({8, 9, 15, 17, 33, 48, 63, 64, 65, 100});
  if (given.draw.once_in(3)) {  // of one pixel
    made.window.kernel_height = made.window.kernel_width = 1;
  }
  if (const Method method = in_unit(given.draw, given.element);
      takes_unit(method, 1, made.channels, given.element) && given.draw.once_in(2))
    made.method = method;
  else if (has_int8(given.element) && given.draw.once_in(3))
    made.method = Method::kInt8;
  convolution(given, made, false);
}

inline void few_channels(Case& given) {
  Geometry made = any_window(given.draw);
  made.channels = given.draw.between(1, 7);
  made.window.out_channels = given.draw.between(8, 70);
  if (made.window.kernel_height * made.window.kernel_width == 1) made.window.kernel_width = 4;
  convolution(given, made, true);
}

/// Patches side by side, as a network's first convolution has them: rows of a few pixels more, or fewer, than
/// some tiles have.
inline void patches(Case& given) {
  Geometry made;
  const int64_t patch = given.draw.of({2, 4}), outputs = given.draw.of({16, 33, 48, 48, 64});
  made.window = {outputs, patch, patch, patch, patch, 0, 0, 1, 1, 0, 0};
  made.channels = given.draw.between(1, 4);
  made.height = patch;
  made.width = patch * given.draw.of({7, 9, 10, 12, 13, 33, 34, 49});
  convolution(given, made, true);
}

inline void depthwise(Case& given) {
  Geometry made = any_window(given.draw);
  made.channels = made.groups = made.window.out_channels = given.draw.between(8, 40);
  convolution(given, made, false);
}

inline void grouped(Case& given) {
  Geometry made = any_window(given.draw);
  const int64_t inputs = given.draw.of({2, 4, 8, 16, 9}), outputs = given.draw.of({2, 4, 8, 16, 24});
  made.groups = given.draw.between(2, 6);
  made.channels = inputs * made.groups;
  made.window.out_channels = (given.draw.once_in(2) ? inputs : outputs) * made.groups;
  convolution(given, made, false);
}

inline void tiles(Case& given) {
  Geometry made = any_window(given.draw);
  Window& window = made.window;
  window.kernel_height = window.kernel_width = 3;
  window.stride_y = window.stride_x = window.dilation_y = window.dilation_x = 1;
  made.channels = given.draw.of({8, 9, 16, 17, 33, 64});
  window.out_channels = given.draw.of({8, 9, 16, 17, 33, 65, 130});
  made.method = given.draw.once_in(2) ? Method::kTiles2 : Method::kTiles4;
  convolution(given, made, false);
}

inline void product(Case& given) {
  Draw& draw = given.draw;
  Shape shape = contiguous(
      {draw.of({0, 1, 2, 3}), draw.of({1, 2, 7, 13, 14, 29, 60}), draw.of({1, 8, 9, 16, 17, 64, 130})});
  const Element read = operand_element(draw, given.element), written = result_element(draw, given.element);
  shape.element = read;
  const int64_t outputs = draw.of({1, 7, 8, 15, 16, 17, 48, 65, 100}), inputs = shape.sizes[2];
  if (draw.once_in(3)) {  // some numbers of longer rows
    const int64_t more = draw.between(1, 5);
    shape.strides[1] += more, shape.strides[0] = shape.strides[1] * shape.sizes[1];
  }
  Method method = Method::kSums;
  if (const Method there = in_unit(draw, given.element);
      takes_unit(there, 1, inputs, given.element) && draw.once_in(2))
    method = there;
  else if (takes_int8(1, inputs, given.element) && draw.once_in(3))
    method = Method::kInt8;
  const Epilogue after = epilogue(draw);
  given.begin("product" + text_of("rows", {shape.sizes[0], shape.sizes[1], inputs}) +
              text_of("outputs", {outputs}) + text_of("stride", {shape.strides[1]}) +
              text_of("method", {static_cast<int64_t>(method)}) + text_of("threads", {given.num_threads}) +
              text_of("types", {static_cast<int64_t>(read), static_cast<int64_t>(written)}));
  std::optional<Call> call = linear_of(shape, outputs, method, after, {given.element, written});
  if (!call) return;
  const Tensor in = tensor(draw, shape);
  const Memory weight = floats(draw, outputs * inputs, given.element), bias = floats(draw, outputs);
  const WeightLayout layout = weight_layout(call->given);
  const Memory packed(packed_size(layout) * sizeof(float), draw.once_in(2));
  pack(weight.floats(), bias.floats(), layout, given.num_threads, packed.floats());
  const Tensor out = empty(draw, call->result);
  const Work work = convolution_work(call->given, given.num_threads);
  const Operands operands{in.memory.data(), packed.floats(), nullptr, out.memory.data()};
  compute(given, work, operands);
  compare_units(given, work, operands, out);
  const double lost = quantised(method, in, inputs);
  for (int64_t n = 0; n < shape.sizes[0]; ++n)
    for (int64_t row = 0; row < shape.sizes[1]; ++row)
      for (int64_t to = 0; to < outputs; ++to) {
        Sum sum;
        sum.add(bias.floats()[to]);
        for (int64_t i = 0; i < inputs; ++i)
          sum.add(in.at(n * shape.strides[0] + row * shape.strides[1] + i) *
                  weight.floats()[to * inputs + i]);
        const double value = activated(sum.value, after.activation, after.low, after.high);
        compare(out.at((n * shape.sizes[1] + row) * outputs + to), {value, 1.5 * sum.size + std::abs(value)},
                read == given.element ? 1e-5 : kLostByHalf, written, text_of("at", {n, row, to}), lost);
      }
}

}  // namespace rlopt::fuzz
