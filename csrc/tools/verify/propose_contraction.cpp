// Proposals for matrix products, convolutions, attention and pools.
#include <algorithm>

#include "tools/verify/propose.h"

namespace rlopt {

namespace {

int64_t last(const Ints& shape, size_t from_back) {
  return shape.size() < from_back ? 1 : shape[shape.size() - from_back];
}

}  // namespace

/// Bias and residual of a fused operator with this output.
void Proposer::epilogue(Draft& draft, const Ints& output) {
  if (is_open(draft, 2)) {
    const bool is_conv = draft.op == Op::FusedConv;
    const Ints row{is_conv && output.size() > 1 ? output[1] : last(output, 1)};
    choose(draft.in[2], is_conv || random_.chance(0.75) ? row : smaller(output), draft.in[0].dtype);
  }
  if (is_open(draft, 3)) choose(draft.in[3], output, draft.in[0].dtype);
}

bool Proposer::matmul(Draft& draft) {
  DraftInput &a = draft.in[0], &b = draft.in[1];
  if (b.shape && b.shape->empty()) return false;
  if (!a.shape) {
    Ints shape = dims(rank_of(a, random_.one_of<int64_t>({1, 2, 2, 2, 3, 3, 4})));
    if (b.shape && !shape.empty()) {
      shape.back() = b.shape->size() == 1 ? b.shape->front() : last(*b.shape, 2);
      const Ints& other = *b.shape;
      for (size_t i = 3; i <= shape.size() && i <= other.size(); ++i) {
        shape[shape.size() - i] = other[other.size() - i];
      }
    }
    choose(a, shape);
  }
  if (a.shape->empty()) return false;
  if (!b.shape) {
    const auto rank = static_cast<int64_t>(a.shape->size());
    const int64_t chosen = rank_of(b, random_.chance(0.6) ? 2 : random_.one_of<int64_t>({1, rank, rank, 3}));
    Ints shape = dims(chosen);
    for (size_t i = 3; i <= shape.size(); ++i) {
      const int64_t beside = i <= a.shape->size() ? last(*a.shape, i) : dim();
      shape[shape.size() - i] = random_.chance(0.8) ? beside : 1;
    }
    if (shape.empty()) return false;
    if (random_.chance(0.3) && shape.size() > 1 && last_channels_ > 0) shape.back() = last_channels_;
    shape[shape.size() - (shape.size() == 1 ? 1 : 2)] = a.shape->back();
    choose(b, shape, a.dtype);
    if (b.shape->empty()) return false;
  }
  Ints output = a.shape->size() > b.shape->size() ? *a.shape : *b.shape;
  if (a.shape->size() >= 2 && b.shape->size() >= 2) {
    output[output.size() - 2] = last(*a.shape, 2);
    output.back() = b.shape->back();
    for (size_t i = 3; i <= output.size(); ++i) {
      const int64_t x = i <= a.shape->size() ? last(*a.shape, i) : 1,
                    y = i <= b.shape->size() ? last(*b.shape, i) : 1;
      output[output.size() - i] = x == 1 ? y : x;
    }
  }
  last_channels_ = b.shape->back();
  epilogue(draft, output);
  last_shape_ = output;
  return true;
}

bool Proposer::gemm(Draft& draft) {
  const bool flip_a = attr<int64_t>(draft, "transA", random_.between(0, 1)) != 0;
  const bool flip_b = attr<int64_t>(draft, "transB", random_.between(0, 1)) != 0;
  const Ints a = choose(draft.in[0], dims(2));
  if (a.size() != 2) return false;
  const int64_t depth = a[flip_a ? 0 : 1], width = dim();
  const Ints b = choose(draft.in[1], flip_b ? Ints{width, depth} : Ints{depth, width}, draft.in[0].dtype);
  if (b.size() != 2) return false;
  const Ints output{a[flip_a ? 1 : 0], b[flip_b ? 0 : 1]};
  if (is_open(draft, 2))
    choose(draft.in[2], random_.chance(0.7) ? Ints{output[1]} : smaller(output), draft.in[0].dtype);
  last_shape_ = output;
  return true;
}

/// Strides, dilations and pads for a kernel; fills in `pads`, and `reach` with the window's size.
void Proposer::window(Draft& draft, const Ints& kernel, Ints& pads, Ints& reach) {
  const size_t rank = kernel.size();
  const auto list = [&](const char* name) {
    Ints proposal;
    if (random_.chance(0.5)) proposal.assign(rank, random_.one_of<int64_t>({1, 1, 2, 3}));
    if (random_.chance(0.2)) {
      proposal.assign(rank, 1);
      for (auto& each : proposal) each = random_.between(1, 2);
    }
    return repeated(draft, name, rank, proposal);
  };
  list("strides");
  const Ints dilations = list("dilations");
  reach = kernel;
  for (size_t i = 0; i < rank; ++i)
    reach[i] = (kernel[i] - 1) * (i < dilations.size() ? dilations[i] : 1) + 1;
  Ints proposal;
  if (random_.chance(0.75)) {
    const bool is_same = random_.chance(0.5);
    for (size_t i = 0; i < 2 * rank; ++i) {
      const int64_t most = std::max<int64_t>(0, std::min<int64_t>(2, reach[i % rank] - 1));
      proposal.push_back(is_same ? (reach[i % rank] - 1) / 2 : random_.between(0, most));
    }
  }
  pads = repeated(draft, "pads", 2 * rank, proposal);
  if (pads.size() != 2 * rank) pads.assign(2 * rank, 0);
}

bool Proposer::convolution(Draft& draft) {
  DraftInput &x = draft.in[0], &w = draft.in[1];
  const int64_t usual = random_.one_of<int64_t>({3, 3, 4, 4, 4, 4, 5, 5});
  const int64_t rank = rank_of(x, rank_of(w, usual));
  if (rank < 3) return false;
  const auto spatial = static_cast<size_t>(rank - 2);
  if (!w.shape) {
    Ints kernel(spatial, random_.one_of<int64_t>({1, 1, 3, 3, 2}));
    if (random_.chance(0.3)) {
      for (auto& size : kernel) size = random_.one_of<int64_t>({1, 2, 3, 3, 5});
    }
    const auto* group = known<int64_t>(draft, "group");
    int64_t groups = group != nullptr ? *group : random_.one_of<int64_t>({1, 1, 1, 2, 2, 3});
    int64_t depth = random_.chance(0.25) ? groups : random_.between(1, 3);
    if (x.shape) {
      const int64_t channels = x.shape->size() > 1 ? (*x.shape)[1] : 1;
      if (group == nullptr && random_.chance(0.2)) groups = channels;  // depthwise
      if (groups < 1 || channels % groups != 0) {
        if (group != nullptr || groups < 1) return false;
        groups = 1;
      }
      depth = channels / groups;
    }
    int64_t width = groups * random_.between(1, 3);
    if (last_channels_ > 0 && last_channels_ % groups == 0 && random_.chance(0.5)) width = last_channels_;
    Ints shape{width, depth};
    shape.insert(shape.end(), kernel.begin(), kernel.end());
    choose(w, shape, x.dtype);
    if (group == nullptr) attr<int64_t>(draft, "group", groups);
  }
  const Ints& weight = *w.shape;
  if (weight.size() != static_cast<size_t>(rank)) return false;
  const int64_t groups = attr<int64_t>(draft, "group", weight[0] % 2 == 0 && random_.chance(0.4) ? 2 : 1);
  Ints pads, reach;
  window(draft, Ints(weight.begin() + 2, weight.end()), pads, reach);
  if (!x.shape) {
    Ints shape{random_.between(1, 3), weight[1] * groups};
    for (size_t i = 0; i < spatial; ++i) {
      shape.push_back(std::max(std::max<int64_t>(1, dim()), reach[i] - pads[i] - pads[spatial + i]));
    }
    choose(x, shape, w.dtype);
  }
  if (x.shape->size() != static_cast<size_t>(rank)) return false;
  last_channels_ = weight[0];
  Ints output{x.shape->front(), weight[0]};
  const auto* strides = known<Ints>(draft, "strides");
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t room = (*x.shape)[i + 2] + pads[i] + pads[spatial + i] - reach[i];
    output.push_back(room < 0 ? 0 : room / (i < strides->size() ? (*strides)[i] : 1) + 1);
  }
  if (draft.op == Op::Conv && is_open(draft, 2)) choose(draft.in[2], {weight[0]}, x.dtype);
  if (draft.op == Op::FusedConv) epilogue(draft, output);
  last_shape_ = output;
  return true;
}

bool Proposer::transposed_convolution(Draft& draft) {
  DraftInput &x = draft.in[0], &w = draft.in[1];
  const int64_t rank = rank_of(x, rank_of(w, random_.one_of<int64_t>({3, 4, 4, 4})));
  if (rank < 3) return false;
  const int64_t groups = attr<int64_t>(draft, "group", random_.one_of<int64_t>({1, 2, 2, 3}));
  if (!x.shape) {
    Ints shape = dims(rank);
    shape[1] = w.shape ? w.shape->front() : groups * random_.between(1, 3);
    for (auto& size : shape) size = std::max<int64_t>(1, size);
    choose(x, shape);
  }
  if (x.shape->size() < 3) return false;
  if (!w.shape) {
    Ints shape{(*x.shape)[1], random_.chance(0.25) ? groups : random_.between(1, 3)};
    for (int64_t i = 2; i < rank; ++i) shape.push_back(random_.between(1, 3));
    choose(w, shape, x.dtype);
  }
  const Ints& weight = *w.shape;
  if (weight.size() < 3) return false;
  Ints pads, reach;
  window(draft, Ints(weight.begin() + 2, weight.end()), pads, reach);
  attr<Ints>(draft, "output_padding", {});
  last_channels_ = weight[1] * groups;
  if (is_open(draft, 2)) choose(draft.in[2], {last_channels_}, x.dtype);
  return true;
}

bool Proposer::attention(Draft& draft) {
  const int64_t rank = rank_of(draft.in[0], random_.chance(0.75) ? 4 : 3);
  if (rank != 3 && rank != 4) return false;
  const int64_t heads = random_.between(1, 3);
  const int64_t repeats = random_.one_of<int64_t>({1, 1, 2});
  const int64_t batch = random_.between(1, 2), size = random_.between(1, 4), width = random_.between(1, 4);
  const int64_t queries = random_.between(1, 5), keys = random_.chance(0.5) ? queries : random_.between(1, 5);
  const auto shape = [&](int64_t count, int64_t length, int64_t depth) {
    return rank == 4 ? Ints{batch, count, length, depth} : Ints{batch, length, count * depth};
  };
  attr<int64_t>(draft, "q_num_heads", rank == 4 ? 0 : heads * repeats);
  attr<int64_t>(draft, "kv_num_heads", rank == 4 ? 0 : heads);
  attr<int64_t>(draft, "is_causal", random_.chance(0.3) ? 1 : 0);
  attr<double>(draft, "scale", random_.one_of<double>({0.0, 0.5, 1.0}));
  attr<double>(draft, "softcap", 0.0);
  // Existing operands fix the sizes of the others.
  const Ints* q = draft.in[0].shape ? &*draft.in[0].shape : nullptr;
  const Ints* k = draft.in[1].shape ? &*draft.in[1].shape : nullptr;
  const Ints* v = draft.in[2].shape ? &*draft.in[2].shape : nullptr;
  const auto beside = [&](const Ints* known, Ints proposal) {
    if (known == nullptr || known->size() != proposal.size()) return proposal;
    Ints taken = *known;
    taken[taken.size() - 2] = proposal[proposal.size() - 2];
    return taken;
  };
  choose(draft.in[0], beside(k, shape(heads * repeats, queries, size)));
  Ints key = beside(q != nullptr ? q : nullptr, shape(heads, keys, size));
  if (v != nullptr && v->size() == key.size()) {
    const int64_t depth = key.back();
    key = *v;
    key.back() = depth;
  }
  choose(draft.in[1], key, draft.in[0].dtype);
  Ints value = *draft.in[1].shape;
  if (random_.chance(0.4) && rank == 4) value.back() = width;
  choose(draft.in[2], value, draft.in[0].dtype);
  if (is_open(draft, 3)) {
    const Ints &a = *draft.in[0].shape, &b = *draft.in[1].shape;
    Ints mask{last(a, 2), last(b, 2)};
    if (random_.chance(0.5))
      mask = {random_.chance(0.5) ? a[0] : 1, rank == 4 && random_.chance(0.5) ? a[1] : 1, mask[0], mask[1]};
    choose(draft.in[3], mask, random_.chance(0.3) ? DType::boolean : DType::f32);
  }
  return true;
}

bool Proposer::pool(Draft& draft) {
  const auto* given =
      op_info(draft.op).infer == InferRule::Pool ? known<Ints>(draft, "kernel_shape") : nullptr;
  const int64_t usual = given != nullptr ? static_cast<int64_t>(given->size()) + 2
                                         : random_.one_of<int64_t>({3, 4, 4, 4, 4, 5});
  Ints proposal = dims(rank_of(draft.in[0], usual));
  for (auto& size : proposal) size = std::max<int64_t>(1, size);
  const Ints shape = choose(draft.in[0], proposal);
  last_shape_ = shape;
  if (shape.size() < 3) return false;
  if (op_info(draft.op).infer == InferRule::GlobalPool) return true;
  Ints kernel;
  for (size_t i = 2; i < shape.size(); ++i) kernel.push_back(std::min(shape[i], random_.between(1, 3)));
  kernel = attr<Ints>(draft, "kernel_shape", kernel);
  Ints pads, reach;
  window(draft, kernel, pads, reach);
  attr<int64_t>(draft, "ceil_mode", random_.chance(0.2) ? 1 : 0);
  if (draft.op == Op::AveragePool) attr<int64_t>(draft, "count_include_pad", random_.between(0, 1));
  return true;
}

}  // namespace rlopt
