// Proposals for reductions and operators that move data.
#include <algorithm>
#include <limits>
#include <numeric>

#include "tools/verify/propose.h"

namespace rlopt {

namespace {

int64_t product(const Ints& list) {
  return std::accumulate(list.begin(), list.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

bool Proposer::reduction(Draft& draft) {
  const Ints shape =
      choose(draft.in[0],
             last_shape_ && random_.chance(0.3) ? *last_shape_ : dims(rank_of(draft.in[0], any_rank(1))));
  const auto rank = static_cast<int64_t>(shape.size());
  Ints axes;
  for (int64_t i = 0; i < rank; ++i) {
    if (random_.chance(i == rank - 1 ? 0.6 : 0.3)) axes.push_back(random_.chance(0.4) ? i - rank : i);
  }
  attr<Ints>(draft, "axes", axes);
  attr<int64_t>(draft, "keepdims", random_.between(0, 1));
  return true;
}

/// The dims given by conditions; -1 for the others.
Ints Proposer::hinted_target(const InputHint& hint, const Ints& otherwise) {
  if (hint.shape) return *hint.shape;
  if (hint.rank < 0 && hint.dims.empty()) return otherwise;
  Ints target = hint.rank < 0 ? otherwise : Ints(static_cast<size_t>(hint.rank), -1);
  for (const auto& [index, size] : hint.dims) set_dim(target, index, size);
  if (std::count(target.begin(), target.end(), -1) > 1) return otherwise;
  return target;
}

/// A shape to which `part` broadcasts, with the dims given by conditions.
Ints Proposer::expansion(const InputHint& hint, const Ints& part) {
  InputHint dims = hint;
  dims.rank = -1;
  Ints target = part;
  while (hint.rank > static_cast<int>(target.size())) target.insert(target.begin(), dim());
  for (auto& size : target) size = size == 1 && random_.chance(0.5) ? dim() : size;
  return hinted_target(dims, hint.rank < 0 ? larger(part) : target);
}

bool Proposer::reshape(Draft& draft) {
  const Ints shape = choose(draft.in[0], dims(rank_of(draft.in[0], any_rank(0))));
  const auto rank = static_cast<int64_t>(shape.size());
  if (draft.op == Op::Flatten) {
    attr<int64_t>(draft, "axis", random_.between(-rank, rank));
    return true;
  }
  Ints target = shape;
  switch (random_.between(0, 6)) {
    case 6:  // unchanged
      break;
    case 0:
      target = {-1};
      break;
    case 1:
    case 2:  // merge two neighbours
      if (rank >= 2) {
        const auto at = static_cast<size_t>(random_.between(0, rank - 2));
        target[at] *= target[at + 1];
        target.erase(target.begin() + static_cast<long>(at) + 1);
      }
      break;
    case 3:
    case 4:  // split one
      if (rank >= 1) {
        const auto at = static_cast<size_t>(random_.between(0, rank - 1));
        const int64_t size = target[at];
        const int64_t factor =
            size % 2 == 0 && size > 0 ? 2 : (random_.chance(0.5) ? 1 : std::max<int64_t>(1, size));
        target[at] = size / factor;
        target.insert(target.begin() + static_cast<long>(at), factor);
      }
      break;
    default:
      target.insert(target.begin() + random_.between(0, rank), 1);
  }
  if (random_.chance(0.2) && !target.empty() && product(shape) > 0)
    random_.chance(0.5) ? target.back() = -1 : target[0] = -1;
  if (random_.chance(0.7)) target = hinted_target(draft.out_hint, target);
  attr<Ints>(draft, "shape", target);
  attr<int64_t>(draft, "allowzero", product(shape) == 0 ? 1 : 0);
  return true;
}

bool Proposer::squeeze(Draft& draft) {
  DraftInput& x = draft.in[0];
  Ints proposal = dims(rank_of(x, any_rank(1)));
  if (draft.op == Op::Squeeze) {
    for (auto& size : proposal) size = random_.chance(0.4) ? 1 : size;
    const auto* given = known<Ints>(draft, "axes");
    for (size_t i = 0; given != nullptr && i < given->size(); ++i) set_dim(proposal, (*given)[i], 1);
  }
  const Ints shape = choose(x, proposal);
  Ints axes;
  const auto rank = static_cast<int64_t>(shape.size());
  if (draft.op == Op::Squeeze) {
    for (int64_t i = 0; i < rank; ++i) {
      if (shape[at(i)] == 1 && random_.chance(0.7)) axes.push_back(random_.chance(0.4) ? i - rank : i);
    }
  } else {
    const int64_t count = random_.chance(0.75) ? 1 : 2;
    const int64_t out = rank + count;
    const int64_t first = random_.between(0, out - 1);
    axes.push_back(random_.chance(0.4) ? first - out : first);
    if (count == 2) axes.push_back((first + 1) % out);
  }
  attr<Ints>(draft, "axes", axes);
  return true;
}

bool Proposer::transpose(Draft& draft) {
  const auto* given = known<Ints>(draft, "perm");
  const int64_t usual =
      given != nullptr && !given->empty() ? static_cast<int64_t>(given->size()) : any_rank(1);
  const Ints shape = choose(draft.in[0], last_shape_ && given == nullptr && random_.chance(0.2)
                                             ? *last_shape_
                                             : dims(rank_of(draft.in[0], usual)));
  Ints perm(shape.size());
  std::iota(perm.begin(), perm.end(), int64_t{0});
  const double kind = random_.uniform();
  if (kind < 0.08) {
    perm.clear();
  } else if (kind < 0.45 && perm.size() >= 2) {
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  } else if (kind < 0.96) {
    for (size_t i = perm.size(); i > 1; --i) {
      std::swap(perm[i - 1], perm[at(random_.between(0, static_cast<int64_t>(i) - 1))]);
    }
  }
  attr<Ints>(draft, "perm", perm);
  return true;
}

bool Proposer::split(Draft& draft) {
  DraftInput& x = draft.in[0];
  const auto* given = known<Ints>(draft, "sizes");
  const auto parts =
      static_cast<int64_t>(given != nullptr ? given->size() : static_cast<size_t>(draft.num_outputs));
  const auto sum = [](const Ints& list) { return std::accumulate(list.begin(), list.end(), int64_t{0}); };
  Ints sizes;
  if (given != nullptr) {
    sizes = *given;
  } else if (random_.chance(0.4)) {
    sizes.assign(static_cast<size_t>(parts), random_.between(1, 3));
  } else {
    for (int64_t i = 0; i < parts; ++i) sizes.push_back(random_.between(1, 3));
  }
  const int64_t rank = rank_of(x, any_rank(1));
  if (rank < 1) return false;
  const int64_t axis = axis_for(draft, "axis", rank);
  if (axis < 0 || axis >= rank) return false;
  if (!x.shape) {
    Ints shape = dims(rank);
    shape[at(axis)] = sum(sizes);
    choose(x, shape);
  }
  if (x.shape->size() <= at(axis)) return false;
  const int64_t size = (*x.shape)[at(axis)];
  if (given == nullptr && sum(sizes) != size) {
    if (size < parts) return false;
    if (size % parts == 0 && random_.chance(0.5)) {
      sizes.assign(static_cast<size_t>(parts), size / parts);
    } else {
      sizes.assign(static_cast<size_t>(parts), 1);
      for (int64_t left = size - parts; left > 0; --left) {
        ++sizes[at(random_.between(0, parts - 1))];
      }
    }
  }
  attr<Ints>(draft, "sizes", sizes);
  return true;
}

bool Proposer::concat(Draft& draft) {
  std::optional<Ints> base;
  DType dtype = DType::f32;
  for (const DraftInput& input : draft.in) {
    if (!input.shape || base) continue;
    base = input.shape;
    dtype = input.dtype;
  }
  const auto* given = known<int64_t>(draft, "axis");
  for (const DraftInput& input : draft.in) {
    if (!base && input.hint.shape) base = input.hint.shape;
  }
  if (!base) {
    base = last_shape_ && !last_shape_->empty() && random_.chance(0.3)
               ? *last_shape_
               : dims(std::max<int64_t>(rank_of(draft.in[0], any_rank(1)),
                                        given != nullptr && *given > 0 ? *given + 1 : 1));
  }
  const auto rank = static_cast<int64_t>(base->size());
  if (rank < 1) return false;
  const int64_t axis = axis_for(draft, "axis", rank);
  if (axis < 0 || axis >= rank) return false;
  const bool is_equal = random_.chance(0.35);
  for (DraftInput& input : draft.in) {
    if (input.shape) continue;
    Ints shape = *base;
    if (!is_equal) shape[at(axis)] = random_.chance(0.03) ? 0 : random_.between(1, 5);
    choose(input, shape, dtype);
  }
  last_shape_ = base;
  return true;
}

bool Proposer::slice(Draft& draft) {
  const auto* given = known<Ints>(draft, "axes");
  const Ints shape = choose(draft.in[0], dims(rank_of(draft.in[0], any_rank(1))));
  const auto rank = static_cast<int64_t>(shape.size());
  if (rank < 1) return false;
  Ints axes{random_.between(-rank, rank - 1)};
  if (rank >= 2 && random_.chance(0.2)) axes = {0, rank - 1};
  axes = given != nullptr ? *given : axes;
  Ints starts, ends, steps;
  bool has_steps = random_.chance(0.3);
  for (const int64_t axis : axes) {
    const int64_t place = axis < 0 ? axis + rank : axis;
    if (place < 0 || place >= rank) return false;
    const int64_t size = shape[at(place)];
    const int64_t first = random_.between(0, std::max<int64_t>(0, size - 1));
    int64_t last = random_.between(std::min(first + 1, size), size);
    if (random_.chance(0.3)) last = std::numeric_limits<int64_t>::max();
    starts.push_back(random_.chance(0.3) && size > 0 ? first - size : first);
    ends.push_back(random_.chance(0.2) && last < size ? last - size : last);
    steps.push_back(has_steps ? random_.between(1, 2) : 1);
  }
  if (random_.chance(0.12)) {  // the whole of it, backwards
    has_steps = true;
    starts.assign(axes.size(), -1);
    ends.assign(axes.size(), std::numeric_limits<int64_t>::min());
    steps.assign(axes.size(), -1);
  }
  attr<Ints>(draft, "axes", axes);
  attr<Ints>(draft, "starts", starts);
  attr<Ints>(draft, "ends", ends);
  attr<Ints>(draft, "steps", has_steps ? steps : Ints{});
  return true;
}

/// The remaining operators: Expand, Tile, Pad, Gather, ConstantOfShape.
bool Proposer::movement(Draft& draft) {
  if (draft.op == Op::ConstantOfShape) {
    attr<Ints>(draft, "shape", dims(any_rank(0)));
    attr<double>(draft, "value", random_.one_of<double>({0.0, 1.0, 0.5}));
    attr<std::string>(draft, "dtype", "f32");
    return true;
  }
  if (draft.in.empty()) return false;
  Ints proposal = dims(rank_of(draft.in[0], any_rank(1)));
  if (draft.op == Op::Expand) {
    for (auto& size : proposal) size = random_.chance(0.5) ? 1 : size;
  }
  const Ints shape = choose(draft.in[0], proposal);
  const auto rank = static_cast<int64_t>(shape.size());
  switch (draft.op) {
    case Op::Expand:
      attr<Ints>(draft, "shape", random_.chance(0.7) ? expansion(draft.out_hint, shape) : larger(shape));
      return true;
    case Op::Tile: {
      Ints repeats;
      for (int64_t i = 0; i < rank; ++i) repeats.push_back(random_.between(1, 3));
      attr<Ints>(draft, "repeats", repeats);
      return true;
    }
    case Op::Pad: {
      Ints pads(shape.size() * 2, 0);
      const bool is_spatial = rank >= 3 && random_.chance(0.6);
      for (size_t i = 0; i < pads.size(); ++i) {
        const bool is_outer = is_spatial && i % shape.size() < 2;
        pads[i] = is_outer || random_.chance(0.3) ? 0 : random_.between(0, 2);
      }
      attr<Ints>(draft, "pads", pads);
      attr<double>(draft, "value", random_.chance(0.7) ? 0.0 : 1.5);
      attr<std::string>(draft, "mode", random_.chance(0.85) ? "constant" : "edge");
      return true;
    }
    case Op::Gather:
      if (rank < 1 || product(shape) == 0) return false;
      axis_for(draft, "axis", rank);
      choose(draft.in[1], dims(rank_of(draft.in[1], random_.between(0, 2))), DType::i64);
      return true;
    default:
      return false;
  }
}

}  // namespace rlopt
