// Internals of shape inference: helpers of the rule functions, and the geometry shared with the reference.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "infer/infer.h"

namespace rlopt {

/// One inference call: operator, attributes, input types.
class InferCall {
 public:
  InferCall(Op op, const Attrs& attrs, const std::vector<const TensorType*>& inputs);

  Op op() const { return info_.op; }
  size_t num_inputs() const { return inputs_.size(); }
  bool has(size_t i) const { return i < inputs_.size() && inputs_[i] != nullptr; }
  /// Type of a present input.
  const TensorType& in(size_t i) const { return *inputs_[i]; }

  int64_t attr_int(const std::string& name) const { return std::get<int64_t>(attrs_.get(info_, name)); }
  const std::string& attr_string(const std::string& name) const {
    return std::get<std::string>(attrs_.get(info_, name));
  }
  const Ints& attr_ints(const std::string& name) const { return std::get<Ints>(attrs_.get(info_, name)); }
  const Floats& attr_floats(const std::string& name) const {
    return std::get<Floats>(attrs_.get(info_, name));
  }
  /// A boolean attribute.
  bool attr_flag(const std::string& name) const;

  /// Throws TypeError "<operator>: expected <expected>, got <got>".
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const;
  void require(bool condition, const std::string& expected, const std::string& got) const {
    if (!condition) fail(expected, got);
  }
  void require_floating(size_t i) const;
  /// Floating, integer or complex.
  void require_numeric(size_t i) const;
  void require_index(size_t i) const;  // i32 or i64
  void require_same_dtype(size_t i, size_t j) const;
  void require_rank(size_t i, int low, int high) const;
  /// Input `i` must have exactly these dims.
  void require_dims(size_t i, const Dims& dims) const;
  /// Input `i` must broadcast to `dims` without changing it.
  void require_broadcasts_to(size_t i, const Dims& dims) const;
  /// `axis` counted from the front, 0 <= result < rank.
  size_t axis(int64_t axis, int rank) const;
  /// All of `axes` counted from the front, without repeats.
  std::vector<size_t> axes(const Ints& axes, int rank) const;
  /// Dims after broadcasting both.
  Dims broadcast(const Dims& a, const Dims& b) const;

 private:
  const OpInfo& info_;
  const Attrs& attrs_;
  const std::vector<const TensorType*>& inputs_;
};

std::string dims_str(const Dims& dims);
std::string ints_str(const Ints& ints);
/// The broadcast of two dims, or nothing if they do not (provably) broadcast.
std::optional<Dim> broadcast_dim(const Dim& a, const Dim& b);
/// Whether the dim is at least `bound` for all non-negative values of its symbols.
bool is_at_least(const Dim& dim, int64_t bound);

/// Strides, pads and dilations of a window over `rank` spatial dims, defaults filled in.
struct Window {
  Ints strides;
  Ints begins;  // padding before
  Ints ends;    // padding after
  Ints dilations;
};
/// Throws TypeError if a list has the wrong length or a value out of range.
Window make_window(const std::string& op, size_t rank, const Ints& strides, const Ints& pads,
                   const Ints& dilations);

using Types = std::vector<TensorType>;
#define RLOPT_INFER_RULE(name, function) Types function(const InferCall& call);
#include "core/infer_rules.def"
#undef RLOPT_INFER_RULE

}  // namespace rlopt
