// The functions available in conditions and attribute expressions.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "library/expression.h"

namespace rlopt {

namespace {

using Args = std::vector<Bound>;
using T = ExprType;

const BoundList& list_of(const Bound& value) { return std::get<BoundList>(value.value); }

/// The number, or nothing if it is symbolic or not a number.
std::optional<int64_t> integer(const Bound& value) {
  const auto* dim = std::get_if<Dim>(&value.value);
  return dim != nullptr && dim->is_static() ? std::optional<int64_t>(dim->value()) : std::nullopt;
}
std::optional<double> real(const Bound& value) {
  if (const auto* number = std::get_if<double>(&value.value)) return *number;
  const auto number = integer(value);
  return number ? std::optional<double>(static_cast<double>(*number)) : std::nullopt;
}
/// All numbers of a list, or nothing.
std::optional<std::vector<int64_t>> integers(const Bound& value) {
  std::vector<int64_t> numbers;
  for (const Bound& each : list_of(value)) {
    const auto number = integer(each);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}
Bound from_integers(const std::vector<int64_t>& numbers) {
  BoundList list;
  for (const int64_t number : numbers) list.push_back({Dim(number)});
  return {std::move(list)};
}
/// The same with both ends allowed, clamped: for slice.
size_t clamped(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  return static_cast<size_t>(std::clamp<int64_t>(index < 0 ? index + count : index, 0, count));
}
bool is_permutation_of_range(const std::vector<int64_t>& perm) {
  std::vector<int64_t> sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

/// Whether a test holds for all positions; unknown if it fails at none and is unknown at some.
template <class Test>
Bound for_all(size_t count, const Test& test) {
  Bound all{true};
  for (size_t i = 0; i < count; ++i) {
    const Bound one = test(i);
    if (one == Bound{false}) return one;
    if (one.is_unknown()) all = one;
  }
  return all;
}
/// The list of an entry for each position; unknown if one is.
template <class Entry>
Bound list_of_known(size_t count, const Entry& entry) {
  BoundList list;
  for (size_t i = 0; i < count; ++i) {
    list.push_back(entry(i));
    if (list.back().is_unknown()) return {};
  }
  return {std::move(list)};
}
// ---- numbers and lists

Bound fn_len(const CallContext&, const Args& a) { return {Dim(static_cast<int64_t>(list_of(a[0]).size()))}; }
Bound fn_same(const CallContext&, const Args& a) {
  const BoundList& list = list_of(a[0]);
  return for_all(list.size(), [&](size_t i) { return binary(BinaryOp::Equal, list[0], list[i]); });
}
template <BinaryOp op>
Bound fold(const Args& a, int64_t start) {
  Bound total{Dim(start)};
  for (const Bound& each : list_of(a[0])) total = binary(op, total, each);
  return total;
}
Bound fn_sum(const CallContext&, const Args& a) { return fold<BinaryOp::Add>(a, 0); }
Bound fn_prod(const CallContext&, const Args& a) { return fold<BinaryOp::Mul>(a, 1); }
template <size_t if_less>
Bound fn_one_of(const CallContext&, const Args& a) {
  const Bound less = binary(BinaryOp::Less, a[0], a[1]);
  return less.is_unknown() ? less : a[less == Bound{true} ? if_less : 1 - if_less];
}
Bound fn_to_float(const CallContext&, const Args& a) {
  const auto number = real(a[0]);
  return number ? Bound{*number} : Bound{};
}
Bound fn_close(const CallContext&, const Args& a) {
  const auto x = real(a[0]), y = real(a[1]);
  if (!x || !y) return {};
  return {nearly_equal(*x, *y)};
}
Bound fn_slice(const CallContext&, const Args& a) {
  const BoundList& list = list_of(a[0]);
  const auto first = integer(a[1]), last = integer(a[2]);
  if (!first || !last) return {};
  const size_t i = clamped(*first, list.size()), j = std::max(i, clamped(*last, list.size()));
  return {BoundList(list.begin() + static_cast<long>(i), list.begin() + static_cast<long>(j))};
}
Bound fn_concat(const CallContext&, const Args& a) {
  BoundList list = list_of(a[0]);
  list.insert(list.end(), list_of(a[1]).begin(), list_of(a[1]).end());
  return {std::move(list)};
}
Bound fn_repeat(const CallContext&, const Args& a) {
  const auto count = integer(a[1]);
  if (!count || *count < 0 || *count > 64) return {};
  return {BoundList(static_cast<size_t>(*count), a[0])};
}
Bound fn_range(const CallContext&, const Args& a) {
  const auto count = integer(a[0]);
  if (!count || *count < 0 || *count > 64) return {};
  BoundList list;
  for (int64_t i = 0; i < *count; ++i) list.push_back({Dim(i)});
  return {std::move(list)};
}
/// Unknown if an earlier entry might be equal.
Bound fn_contains(const CallContext&, const Args& a) {
  for (const Bound& each : list_of(a[0])) {
    const auto equal = bounds_equal(each, a[1]);
    if (!equal) return {};
    if (*equal) return {true};
  }
  return {false};
}
/// Every entry equals the value; true for an empty list.
Bound fn_all_equal(const CallContext&, const Args& a) {
  const BoundList& list = list_of(a[0]);
  return for_all(list.size(), [&](size_t i) {
    const auto equal = bounds_equal(list[i], a[1]);
    return equal ? Bound{*equal} : Bound{};
  });
}
/// Every entry is at least the number; true for an empty list.
Bound fn_all_at_least(const CallContext&, const Args& a) {
  const BoundList& list = list_of(a[0]);
  return for_all(list.size(), [&](size_t i) { return binary(BinaryOp::GreaterEqual, list[i], a[1]); });
}
/// Entry by entry; unknown for lists of different lengths.
Bound fn_all_at_most(const CallContext&, const Args& a) {
  const BoundList &low = list_of(a[0]), &high = list_of(a[1]);
  if (low.size() != high.size()) return {};
  return for_all(low.size(), [&](size_t i) { return binary(BinaryOp::LessEqual, low[i], high[i]); });
}
template <BinaryOp op>
Bound fn_zip(const CallContext&, const Args& a) {
  const BoundList &x = list_of(a[0]), &y = list_of(a[1]);
  if (x.size() != y.size()) return {};
  return list_of_known(x.size(), [&](size_t i) { return binary(op, x[i], y[i]); });
}

// ---- axes, permutations, attributes

Bound fn_norm_axis(const CallContext&, const Args& a) {
  const auto rank = integer(a[1]);
  const auto at = rank && *rank >= 0 ? list_position(a[0], static_cast<size_t>(*rank)) : std::nullopt;
  return at ? Bound{Dim(static_cast<int64_t>(*at))} : Bound{};
}
Bound fn_norm_axes(const CallContext& c, const Args& a) {
  return list_of_known(list_of(a[0]).size(),
                       [&](size_t i) { return fn_norm_axis(c, {list_of(a[0])[i], a[1]}); });
}
Bound fn_inverse(const CallContext&, const Args& a) {
  const auto perm = integers(a[0]);
  if (!perm || !is_permutation_of_range(*perm)) return {};
  std::vector<int64_t> inverse(perm->size());
  for (size_t i = 0; i < perm->size(); ++i) inverse[at((*perm)[i])] = static_cast<int64_t>(i);
  return from_integers(inverse);
}
/// Transpose by p, then by q, is Transpose by compose(p, q): entry i is p[q[i]].
Bound fn_compose(const CallContext&, const Args& a) {
  return list_of_known(list_of(a[1]).size(), [&](size_t i) {
    const auto at = list_position(list_of(a[1])[i], list_of(a[0]).size());
    return at ? list_of(a[0])[*at] : Bound{};
  });
}
Bound fn_perm_default(const CallContext& c, const Args& a) {
  if (!list_of(a[0]).empty()) return a[0];
  Bound range = fn_range(c, {a[1]});
  if (auto* list = std::get_if<BoundList>(&range.value)) std::reverse(list->begin(), list->end());
  return range;
}
/// An empty attribute list stands for n copies of the value.
Bound fn_default(const CallContext& c, const Args& a) {
  return list_of(a[0]).empty() ? fn_repeat(c, {a[1], a[2]}) : a[0];
}

std::vector<Function> make_functions() {
  std::vector<Function> all = tensor_functions();
  const std::vector<Function> others{
      {"num", {T::List}, T::Int, fn_len, true},
      {"same", {T::List}, T::Bool, fn_same, true},
      {"sum", {T::List}, T::Number, fn_sum},
      {"prod", {T::List}, T::Number, fn_prod},
      {"max", {T::Number, T::Number}, T::Number, fn_one_of<1>},
      {"min", {T::Number, T::Number}, T::Number, fn_one_of<0>},
      {"to_float", {T::Number}, T::Float, fn_to_float},
      {"close", {T::Number, T::Number}, T::Bool, fn_close},
      {"len", {T::List}, T::Int, fn_len},
      {"slice", {T::List, T::Int, T::Int}, T::List, fn_slice},
      {"concat", {T::List, T::List}, T::List, fn_concat},
      {"repeat", {T::Any, T::Int}, T::List, fn_repeat},
      {"range", {T::Int}, T::List, fn_range},
      {"contains", {T::List, T::Any}, T::Bool, fn_contains},
      {"all_equal", {T::List, T::Any}, T::Bool, fn_all_equal},
      {"all_at_least", {T::List, T::Number}, T::Bool, fn_all_at_least},
      {"all_at_most", {T::List, T::List}, T::Bool, fn_all_at_most},
      {"zip_add", {T::List, T::List}, T::List, fn_zip<BinaryOp::Add>},
      {"zip_mul", {T::List, T::List}, T::List, fn_zip<BinaryOp::Mul>},
      {"norm_axis", {T::Int, T::Int}, T::Int, fn_norm_axis},
      {"norm_axes", {T::List, T::Int}, T::List, fn_norm_axes},
      {"inverse", {T::List}, T::List, fn_inverse},
      {"compose", {T::List, T::List}, T::List, fn_compose},
      {"perm_default", {T::List, T::Int}, T::List, fn_perm_default},
      {"default", {T::List, T::Any, T::Int}, T::List, fn_default},
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

const std::vector<Function>& functions() {
  static const std::vector<Function> all = make_functions();
  return all;
}

}  // namespace

std::optional<size_t> list_position(const Bound& index, size_t size) {
  const auto i = integer(index);
  if (!i) return std::nullopt;
  const auto count = static_cast<int64_t>(size);
  const int64_t at = *i < 0 ? *i + count : *i;
  return at < 0 || at >= count ? std::nullopt : std::optional<size_t>(static_cast<size_t>(at));
}

const Function* find_function(const std::string& name) {
  static const std::unordered_map<std::string, const Function*> by_name = [] {
    std::unordered_map<std::string, const Function*> map;
    for (const Function& function : functions()) map.emplace(function.name, &function);
    return map;
  }();
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : it->second;
}

std::vector<std::string> function_names() {
  std::vector<std::string> names;
  for (const Function& function : functions()) names.push_back(function.name);
  return names;
}

}  // namespace rlopt
