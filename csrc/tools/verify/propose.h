// Random proposals for the open inputs and attributes of one operator; the verifier uses them to draw
// instances.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/op.h"

namespace rlopt {

/// A generator with the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() { return hash_mix(++state_, 0x5851f42d4c957f2dULL); }
  /// In [low, high].
  int64_t between(int64_t low, int64_t high);
  bool chance(double probability) { return uniform() < probability; }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[at(between(0, static_cast<int64_t>(from.size()) - 1))];
  }
  template <class T>
  T one_of(std::initializer_list<T> from) {
    return pick(std::vector<T>(from));
  }

 private:
  uint64_t state_;
};

/// What conditions imply for an input before it is drawn.
struct InputHint {
  int rank = -1;
  std::vector<std::pair<int64_t, int64_t>> dims;  // index (may be negative), size
  std::optional<Ints> shape;
  std::optional<Ints> broadcasts_to;
  std::optional<DType> dtype;
};

struct DraftInput {
  bool is_omitted = false;
  std::optional<Ints> shape;  // nothing: still to be drawn
  DType dtype = DType::f32;
  bool is_known = false;  // already exists: neither shape nor dtype may change
  InputHint hint;
};

/// One node to be drawn.
struct Draft {
  Op op = Op::Opaque;
  std::vector<DraftInput> in;
  std::vector<std::optional<AttrValue>> attrs;  // in schema order; nothing: still to be drawn
  std::map<std::string, int64_t> all_equal;     // hints: every entry of the list attribute has this value
  InputHint out_hint;                           // of the first output
  int num_outputs = 1;
};

/// Draws the open parts of drafts. One proposer serves one instance: it repeats sizes and attributes on
/// purpose, because real graphs do, and because shapes that never agree satisfy no condition.
class Proposer {
 public:
  explicit Proposer(Random& random);
  /// Fills in all open inputs and attributes; false if nothing can fit. Inference makes the final check.
  bool propose(Draft& draft);

 private:
  // Building blocks.
  int64_t dim();
  Ints dims(int64_t rank);
  int64_t rank_of(const DraftInput& input, int64_t otherwise) const;
  const Ints& choose(DraftInput& input, Ints proposal, std::optional<DType> dtype = std::nullopt);
  int64_t any_rank(int64_t low);
  int64_t axis_for(Draft& draft, const char* name, int64_t rank);
  Ints smaller(const Ints& target);
  Ints larger(const Ints& part);
  Ints repeated(Draft& draft, const char* name, size_t length, const Ints& proposal);
  template <class T>
  const T& attr(Draft& draft, const char* name, T proposal);
  template <class T>
  const T* known(const Draft& draft, const char* name) const;
  bool is_open(const Draft& draft, size_t i) const;
  void fill_attributes(Draft& draft);

  // By kind of operator.
  bool elementwise(Draft& draft);
  void broadcast(Draft& draft, size_t first, DType dtype);
  bool joined(Draft& draft);
  bool normalisation(Draft& draft);
  bool matmul(Draft& draft);
  bool gemm(Draft& draft);
  bool convolution(Draft& draft);
  bool transposed_convolution(Draft& draft);
  bool attention(Draft& draft);
  bool pool(Draft& draft);
  bool reduction(Draft& draft);
  bool reshape(Draft& draft);
  bool squeeze(Draft& draft);
  Ints expansion(const InputHint& hint, const Ints& part);
  static Ints hinted_target(const InputHint& hint, const Ints& otherwise);
  bool transpose(Draft& draft);
  bool split(Draft& draft);
  bool concat(Draft& draft);
  bool slice(Draft& draft);
  bool movement(Draft& draft);
  void epilogue(Draft& draft, const Ints& output);
  void window(Draft& draft, const Ints& kernel, Ints& pads, Ints& reach);

  Random& random_;
  std::vector<int64_t> sizes_;  // preferred sizes of this instance
  bool has_empty_ = false;      // one of them is 0
  std::optional<Ints> last_shape_;
  std::map<int64_t, Ints> last_dims_;  // by rank
  std::map<std::string, Ints> last_list_;
  int64_t last_channels_ = 0;
};

/// Sets the dim at an index, which may be negative, if there is one.
inline void set_dim(Ints& dims, int64_t index, int64_t size) {
  const auto rank = static_cast<int64_t>(dims.size());
  const int64_t place = index < 0 ? index + rank : index;
  if (place >= 0 && place < rank) dims[at(place)] = size;
}

inline size_t attr_index(Op op, const std::string& name) {
  const OpInfo& info = op_info(op);
  return static_cast<size_t>(info.find_attr(name) - info.attrs.data());
}

template <class T>
const T* Proposer::known(const Draft& draft, const char* name) const {
  const auto& value = draft.attrs[attr_index(draft.op, name)];
  return value ? std::get_if<T>(&*value) : nullptr;
}

template <class T>
const T& Proposer::attr(Draft& draft, const char* name, T proposal) {
  auto& value = draft.attrs[attr_index(draft.op, name)];
  if (!value) value.emplace(std::in_place_type<T>, std::move(proposal));
  return std::get<T>(*value);
}

}  // namespace rlopt
