// Types of matrix products, Einsum, convolutions and attention.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "infer/rules.h"

namespace rlopt {

namespace {

/// The epilogue of a fused operator: an activation's name, a bias, a residual of the output's shape.
void check_epilogue(const InferCall& call, const Dims& output) {
  static const std::set<std::string> known{"",        "Relu", "Gelu",      "GeluTanh",    "Swish",
                                           "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu",
                                           "Clip",    "Elu"};
  const std::string& activation = call.attr_string("activation");
  call.require(known.contains(activation), "the name of an activation", "\"" + activation + "\"");
  if (call.has(3)) {
    call.require_same_dtype(0, 3);
    call.require_dims(3, output);
  }
}

std::string trim_spaces(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c != ' ') result += c;
  }
  return result;
}

/// Splits at commas; "a,,b" has an empty (rank 0) term in the middle.
std::vector<std::string> split_terms(const std::string& text) {
  std::vector<std::string> terms(1);
  for (const char c : text) {
    if (c == ',') {
      terms.emplace_back();
    } else {
      terms.back() += c;
    }
  }
  return terms;
}

/// Number and order of the labels of one equation: letters by first use, ellipsis dims counted from the back.
class EinsumLabels {
 public:
  explicit EinsumLabels(const std::string& equation) : equation_(equation) {}

  std::vector<int> term(const std::string& text, std::optional<int> rank) {
    std::vector<int> labels;
    const size_t dots = text.find("...");
    const std::string before = text.substr(0, dots);
    const std::string after = dots == std::string::npos ? "" : text.substr(dots + 3);
    append(labels, before);
    if (dots != std::string::npos) {
      const int letters = static_cast<int>(before.size() + after.size());
      const int covered = rank ? *rank - letters : ellipsis_;
      if (covered < 0)
        fail("an operand of rank " + std::to_string(letters) + " or more", std::to_string(*rank));
      ellipsis_ = std::max(ellipsis_, covered);
      for (int i = covered; i > 0; --i) labels.push_back(label(dot(i)));
      append(labels, after);
    }
    if (rank && static_cast<int>(labels.size()) != *rank) {
      fail("an operand of rank " + std::to_string(labels.size()), "rank " + std::to_string(*rank));
    }
    for (const int each : labels) ++uses_[each];
    return labels;
  }

  /// Without "->": the ellipsis, then the letters used once, in alphabetical order.
  std::vector<int> implicit_output() {
    std::vector<int> labels;
    for (int i = ellipsis_; i > 0; --i) labels.push_back(label(dot(i)));
    for (const auto& [name, number] : numbers_) {
      if (name[0] != '.' && uses_[number] == 1) labels.push_back(number);
    }
    return labels;
  }

  int count() const { return static_cast<int>(numbers_.size()); }

  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw TypeError("Einsum: expected " + expected + ", got " + got + " in equation \"" + equation_ + "\"");
  }

 private:
  void append(std::vector<int>& labels, const std::string& letters) {
    for (const char c : letters) {
      if (std::isalpha(static_cast<unsigned char>(c)) == 0) fail("letters and \"...\"", std::string(1, c));
      labels.push_back(label(std::string(1, c)));
    }
  }
  /// Name of the i-th ellipsis dim from the back; no letter starts with a dot.
  static std::string dot(int i) {
    std::string name(1, '.');
    name += std::to_string(i);
    return name;
  }
  int label(const std::string& name) { return numbers_.try_emplace(name, count()).first->second; }

  const std::string& equation_;
  std::map<std::string, int> numbers_;
  std::map<int, int> uses_;
  int ellipsis_ = 0;
};

/// A parsed equation; labels are numbers, including those of an ellipsis.
struct Einsum {
  std::vector<std::vector<int>> inputs;
  std::vector<int> output;
  int num_labels = 0;
};

/// Throws TypeError if the equation is malformed or does not fit the ranks.
Einsum parse_einsum(const std::string& equation, const std::vector<int>& ranks) {
  const std::string text = trim_spaces(equation);
  EinsumLabels labels(equation);
  const size_t arrow = text.find("->");
  const std::vector<std::string> terms = split_terms(text.substr(0, arrow));
  if (terms.size() != ranks.size()) {
    labels.fail(std::to_string(terms.size()) + " operands", std::to_string(ranks.size()));
  }
  Einsum einsum;
  for (size_t i = 0; i < terms.size(); ++i) einsum.inputs.push_back(labels.term(terms[i], ranks[i]));
  const int bound = labels.count();
  if (arrow == std::string::npos) {
    einsum.output = labels.implicit_output();
  } else {
    einsum.output = labels.term(text.substr(arrow + 2), std::nullopt);
    std::vector<int> sorted = einsum.output;
    std::sort(sorted.begin(), sorted.end());
    const bool repeats = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
    if (repeats || labels.count() > bound)
      labels.fail("distinct output labels of the operands", text.substr(arrow + 2));
  }
  einsum.num_labels = labels.count();
  return einsum;
}

}  // namespace

Types infer_matmul(const InferCall& call) {
  const TensorType& a = call.in(0);
  const TensorType& b = call.in(1);
  call.require_numeric(0);
  call.require_same_dtype(0, 1);
  call.require_rank(0, 1, 64);
  call.require_rank(1, 1, 64);
  const Dim& depth = b.rank() == 1 ? b.dims[0] : b.dims[b.dims.size() - 2];
  call.require(a.dims.back() == depth, "equal contracted dims", a.str() + " and " + b.str());
  const auto batch = [](const Dims& dims) {
    return Dims(dims.begin(),
                dims.end() - std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(dims.size())));
  };
  TensorType type{a.dtype, true, call.broadcast(batch(a.dims), batch(b.dims))};
  if (a.rank() > 1) type.dims.push_back(a.dims[a.dims.size() - 2]);
  if (b.rank() > 1) type.dims.push_back(b.dims.back());
  if (call.op() == Op::FusedMatMul) {
    if (call.has(2)) {
      call.require_same_dtype(0, 2);
      call.require_broadcasts_to(2, type.dims);
    }
    check_epilogue(call, type.dims);
  }
  return {type};
}

Types infer_gemm(const InferCall& call) {
  call.require_numeric(0);
  call.require_same_dtype(0, 1);
  call.require_rank(0, 2, 2);
  call.require_rank(1, 2, 2);
  const size_t a_flip = call.attr_flag("transA") ? 1 : 0;
  const size_t b_flip = call.attr_flag("transB") ? 1 : 0;
  const Dims& a = call.in(0).dims;
  const Dims& b = call.in(1).dims;
  call.require(a[1 - a_flip] == b[b_flip], "equal contracted dims",
               call.in(0).str() + " and " + call.in(1).str());
  TensorType type{call.in(0).dtype, true, {a[a_flip], b[1 - b_flip]}};
  if (call.has(2)) {
    call.require_same_dtype(0, 2);
    call.require_broadcasts_to(2, type.dims);
  }
  return {type};
}

Types infer_einsum(const InferCall& call) {
  call.require_numeric(0);
  std::vector<int> ranks;
  for (size_t i = 0; i < call.num_inputs(); ++i) {
    call.require_same_dtype(0, i);
    ranks.push_back(call.in(i).rank());
  }
  const Einsum einsum = parse_einsum(call.attr_string("equation"), ranks);
  Dims sizes(static_cast<size_t>(einsum.num_labels), Dim(1));
  for (size_t i = 0; i < call.num_inputs(); ++i) {
    for (size_t k = 0; k < einsum.inputs[i].size(); ++k) {
      Dim& size = sizes[at(einsum.inputs[i][k])];
      const std::optional<Dim> joint = broadcast_dim(size, call.in(i).dims[k]);
      call.require(joint.has_value(), "one size per label", size.str() + " and " + call.in(i).dims[k].str());
      size = *joint;
    }
  }
  TensorType type{call.in(0).dtype, true, {}};
  for (const int label : einsum.output) type.dims.push_back(sizes[at(label)]);
  return {type};
}

Window make_window(const std::string& op, size_t rank, const Ints& strides, const Ints& pads,
                   const Ints& dilations) {
  const auto check = [&op](const char* name, const Ints& list, size_t length, int64_t least) {
    const bool in_range = std::all_of(list.begin(), list.end(), [least](int64_t v) { return v >= least; });
    if ((list.empty() || list.size() == length) && in_range) return;
    throw TypeError(op + ": expected " + std::to_string(length) + " " + name + " of at least " +
                    std::to_string(least) + ", got " + ints_str(list));
  };
  check("strides", strides, rank, 1);
  check("pads", pads, 2 * rank, 0);
  check("dilations", dilations, rank, 1);
  const auto half = static_cast<std::ptrdiff_t>(rank);
  Window window;
  window.strides = strides.empty() ? Ints(rank, 1) : strides;
  window.dilations = dilations.empty() ? Ints(rank, 1) : dilations;
  window.begins = pads.empty() ? Ints(rank, 0) : Ints(pads.begin(), pads.begin() + half);
  window.ends = pads.empty() ? Ints(rank, 0) : Ints(pads.begin() + half, pads.end());
  return window;
}

Types infer_conv(const InferCall& call) {
  const TensorType& x = call.in(0);
  const TensorType& w = call.in(1);
  call.require_floating(0);
  call.require_same_dtype(0, 1);
  call.require_rank(0, 3, 5);
  call.require_rank(1, x.rank(), x.rank());
  const int64_t group = call.attr_int("group");
  call.require(group >= 1, "a positive group", std::to_string(group));
  call.require(x.dims[1] == w.dims[1] * group, "input channels = group * " + w.dims[1].str(), x.str());
  call.require(w.dims[0].floor_div(group) * group == w.dims[0], "output channels that the group divides",
               w.str());
  if (call.has(2)) {
    call.require_same_dtype(0, 2);
    call.require_dims(2, {w.dims[0]});
  }
  const size_t rank = x.dims.size() - 2;
  const Window window = make_window(op_info(call.op()).name, rank, call.attr_ints("strides"),
                                    call.attr_ints("pads"), call.attr_ints("dilations"));
  TensorType type{x.dtype, true, {x.dims[0], w.dims[0]}};
  for (size_t i = 0; i < rank; ++i) {
    const Dim reach = (w.dims[i + 2] - 1) * window.dilations[i] + 1;
    const Dim room = x.dims[i + 2] + window.begins[i] + window.ends[i] - reach;
    call.require(!room.is_static() || (room.value() >= 0 && is_at_least(w.dims[i + 2], 1)),
                 "a kernel within the padded input", x.str() + " and " + w.str());
    type.dims.push_back(room.floor_div(window.strides[i]) + 1);
  }
  if (call.op() == Op::FusedConv) check_epilogue(call, type.dims);
  return {type};
}

Types infer_conv_transpose(const InferCall& call) {
  const TensorType& x = call.in(0);
  const TensorType& w = call.in(1);
  call.require_floating(0);
  call.require_same_dtype(0, 1);
  call.require_rank(0, 3, 5);
  call.require_rank(1, x.rank(), x.rank());
  const int64_t group = call.attr_int("group");
  call.require(group >= 1, "a positive group", std::to_string(group));
  call.require(x.dims[1] == w.dims[0], "input channels = " + w.dims[0].str(), x.str());
  call.require(x.dims[1].floor_div(group) * group == x.dims[1], "input channels that the group divides",
               x.str());
  const Dim channels = w.dims[1] * group;
  if (call.has(2)) {
    call.require_same_dtype(0, 2);
    call.require_dims(2, {channels});
  }
  const size_t rank = x.dims.size() - 2;
  const Window window = make_window("ConvTranspose", rank, call.attr_ints("strides"), call.attr_ints("pads"),
                                    call.attr_ints("dilations"));
  const Ints& extra = call.attr_ints("output_padding");
  call.require(extra.empty() || extra.size() == rank, "one output_padding per spatial dim", ints_str(extra));
  TensorType type{x.dtype, true, {x.dims[0], channels}};
  for (size_t i = 0; i < rank; ++i) {
    const int64_t more = extra.empty() ? 0 : extra[i];
    call.require(more == 0 || (more > 0 && more < std::max(window.strides[i], window.dilations[i])),
                 "output_padding below the stride or dilation", ints_str(extra));
    const Dim reach = (w.dims[i + 2] - 1) * window.dilations[i] + 1;
    const Dim size =
        (x.dims[i + 2] - 1) * window.strides[i] + reach + more - window.begins[i] - window.ends[i];
    call.require(!size.is_static() || (size.value() >= 1 && is_at_least(w.dims[i + 2], 1)),
                 "a non-empty output", x.str() + " and " + w.str());
    type.dims.push_back(size);
  }
  return {type};
}

Types infer_attention(const InferCall& call) {
  const int rank = call.in(0).rank();
  call.require_rank(0, 3, 4);
  for (size_t i = 0; i < 3; ++i) {
    call.require_floating(i);
    call.require_same_dtype(0, i);
    call.require_rank(i, rank, rank);
  }
  call.attr_flag("is_causal");
  const int64_t q_heads = call.attr_int("q_num_heads");
  const int64_t kv_heads = call.attr_int("kv_num_heads");
  // Reshapes every operand to [batch, heads, length, head size].
  const auto split_heads = [&call, rank](size_t i, int64_t heads) -> Dims {
    const Dims& dims = call.in(i).dims;
    if (rank == 4) return dims;
    call.require(heads > 0, "head counts with inputs of rank 3", std::to_string(heads));
    const Dim size = dims[2].floor_div(heads);
    call.require(size * heads == dims[2], "a hidden size that the head count divides", call.in(i).str());
    return {dims[0], heads, dims[1], size};
  };
  call.require(rank == 3 || (q_heads == 0 && kv_heads == 0), "no head counts with inputs of rank 4",
               std::to_string(q_heads) + " and " + std::to_string(kv_heads));
  const Dims q = split_heads(0, q_heads);
  const Dims k = split_heads(1, kv_heads);
  const Dims v = split_heads(2, kv_heads);
  const std::string all = call.in(0).str() + ", " + call.in(1).str() + ", " + call.in(2).str();
  call.require(q[0] == k[0] && q[0] == v[0], "one batch size", all);
  call.require(q[3] == k[3], "one head size of queries and keys", all);
  call.require(k[1] == v[1] && k[2] == v[2], "as many keys as values", all);
  call.require(q[1] == k[1] || q[1].floor_div(k[1]) * k[1] == q[1], "query heads a multiple of the key heads",
               all);
  if (call.has(3)) {
    const bool is_bool = call.in(3).dtype == DType::boolean;
    if (!is_bool) call.require_same_dtype(0, 3);
    call.require_rank(3, 2, 4);
    call.require_broadcasts_to(3, {q[0], q[1], q[2], k[2]});
  }
  if (rank == 3) return {{call.in(0).dtype, true, {q[0], q[2], q[1] * v[3]}}};
  return {{call.in(0).dtype, true, {q[0], q[1], q[2], v[3]}}};
}

}  // namespace rlopt
