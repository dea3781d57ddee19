#include "core/op.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>
#include <type_traits>
#include <unordered_map>

namespace rlopt {

namespace {

std::string trim(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

double parse_double(const std::string& text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return parse_real(text).value();
}

AttrSpec parse_spec(const std::string& text) {
  const size_t colon = text.find(':');
  const size_t equal = text.find('=');
  AttrSpec spec;
  spec.name = trim(text.substr(0, colon));
  const std::string kind = text.substr(colon + 1, equal == std::string::npos ? equal : equal - colon - 1);
  spec.required = equal == std::string::npos;
  const std::string value = spec.required ? "" : trim(text.substr(equal + 1));
  if (kind == "int") {
    spec.kind = AttrKind::Int;
    spec.default_value = spec.required ? int64_t{0} : parse_integer(value).value();
  } else if (kind == "float") {
    spec.kind = AttrKind::Float;
    spec.default_value = spec.required ? 0.0 : parse_double(value);
  } else if (kind == "string") {
    spec.kind = AttrKind::String;
    spec.default_value = value;
  } else if (kind == "ints") {
    spec.kind = AttrKind::Ints;
    spec.default_value = Ints{};
  } else {
    spec.kind = AttrKind::Floats;
    spec.default_value = Floats{};
  }
  return spec;
}

std::vector<AttrSpec> parse_schema(const std::string& schema) {
  std::vector<AttrSpec> specs;
  std::stringstream stream(schema);
  std::string part;
  while (std::getline(stream, part, ';')) {
    if (!trim(part).empty()) specs.push_back(parse_spec(trim(part)));
  }
  return specs;
}

/// Whether the ids are exactly 0 to kNumOps - 1: arrays over operators are indexed by them.
constexpr bool ids_are_dense() {
  bool is_taken[kNumOps] = {};
  constexpr int ids[] = {
#define RLOPT_OP(id, ...) id,
#include "core/ops.def"
#undef RLOPT_OP
  };
  for (const int id : ids) {
    if (id < 0 || id >= kNumOps || is_taken[id]) return false;
    is_taken[id] = true;
  }
  return true;
}
static_assert(ids_are_dense(), "ops.def: an id is used twice or left out");

std::vector<OpInfo> make_table() {
  std::vector<OpInfo> table(kNumOps);
#define RLOPT_OP(id, name, domain, min_inputs, max_inputs, num_outputs, attrs, cost, infer, dtypes, traits) \
  table[id] = {Op::name,                                                                                    \
               #name,                                                                                       \
               domain,                                                                                      \
               min_inputs,                                                                                  \
               max_inputs,                                                                                  \
               num_outputs,                                                                                 \
               parse_schema(attrs),                                                                         \
               CostClass::cost,                                                                             \
               InferRule::infer,                                                                            \
               DTypes::dtypes,                                                                              \
               traits};
#include "core/ops.def"
#undef RLOPT_OP
  return table;
}

const char* kind_name(AttrKind kind) {
  static constexpr const char* kNames[] = {"int", "float", "string", "list of ints", "list of floats"};
  return kNames[at(kind)];
}

/// The value converted to the schema's kind, or TypeError.
AttrValue coerce(const OpInfo& info, const AttrSpec& spec, const AttrValue& value) {
  if (static_cast<size_t>(spec.kind) == value.index()) return value;
  if (spec.kind == AttrKind::Float && std::holds_alternative<int64_t>(value)) {
    return static_cast<double>(std::get<int64_t>(value));
  }
  if (spec.kind == AttrKind::Floats && std::holds_alternative<Ints>(value)) {
    const Ints& ints = std::get<Ints>(value);
    return Floats(ints.begin(), ints.end());
  }
  if (spec.kind == AttrKind::Ints && std::holds_alternative<Floats>(value) &&
      std::get<Floats>(value).empty()) {
    return Ints{};
  }
  throw TypeError(info.name + ": attribute '" + spec.name + "' must be " + kind_name(spec.kind) + ", got " +
                  attr_str(value));
}

}  // namespace

const AttrSpec* OpInfo::find_attr(const std::string& attr) const {
  for (const auto& spec : attrs) {
    if (spec.name == attr) return &spec;
  }
  return nullptr;
}

const std::vector<OpInfo>& all_ops() {
  static const std::vector<OpInfo> table = make_table();
  return table;
}

const OpInfo& op_info(Op op) { return all_ops()[at(op)]; }

Op find_op(const std::string& name) {
  static const std::unordered_map<std::string, Op> by_name = [] {
    std::unordered_map<std::string, Op> map;
    for (const auto& info : all_ops()) map.emplace(info.name, info.op);
    return map;
  }();
  const auto it = by_name.find(name);
  return it == by_name.end() ? Op::Opaque : it->second;
}

bool belongs(DType dtype, DTypes dtypes) {
  const bool is_complex = dtype == DType::c64 || dtype == DType::c128;
  const bool is_negative = dtype >= DType::i8 && dtype <= DType::i64;
  switch (dtypes) {
    case DTypes::Any:
      return true;
    case DTypes::Known:
      return dtype != DType::other;
    case DTypes::Numeric:
      return is_floating(dtype) || is_integer(dtype) || is_complex;
    case DTypes::Ordered:
      return is_floating(dtype) || is_integer(dtype);
    case DTypes::Signed:
      return is_floating(dtype) || is_negative || is_complex;
    case DTypes::Float:
      return is_floating(dtype);
    case DTypes::Integer:
      return is_integer(dtype);
    case DTypes::Unsigned:
      return is_integer(dtype) && !is_negative;
    case DTypes::Bool:
      return dtype == DType::boolean;
  }
  return false;
}

const char* dtypes_text(DTypes dtypes) {
  static constexpr const char* kTexts[] = {"any dtype",        "numbers or bool",   "a numeric dtype",
                                           "ordered numbers",  "a signed dtype",    "a floating dtype",
                                           "an integer dtype", "an unsigned dtype", "bool"};
  return kTexts[at(dtypes)];
}

std::shared_ptr<const Attrs> Attrs::make(Op op, const std::vector<std::pair<std::string, AttrValue>>& given) {
  const OpInfo& info = op_info(op);
  auto attrs = std::make_shared<Attrs>();
  std::vector<bool> is_set(info.attrs.size(), false);
  for (const auto& spec : info.attrs) attrs->values_.push_back(spec.default_value);
  for (const auto& [name, value] : given) {
    const AttrSpec* spec = info.find_attr(name);
    if (spec == nullptr) {
      std::string known;
      for (const auto& each : info.attrs) known += (known.empty() ? "" : ", ") + each.name;
      throw TypeError(info.name + ": unknown attribute '" + name + "'; it has " +
                      (known.empty() ? "none" : known));
    }
    const auto index = static_cast<size_t>(spec - info.attrs.data());
    attrs->values_[index] = coerce(info, *spec, value);
    is_set[index] = true;
  }
  for (size_t i = 0; i < info.attrs.size(); ++i) {
    if (info.attrs[i].required && !is_set[i]) {
      throw TypeError(info.name + ": required attribute '" + info.attrs[i].name + "' is missing");
    }
  }
  attrs->fingerprint_ = attrs->values_.size();
  for (const AttrValue& value : attrs->values_)
    attrs->fingerprint_ = hash_value(attrs->fingerprint_, value, Zeros::Equal);
  return attrs;
}

const AttrValue& Attrs::get(const OpInfo& info, const std::string& name) const {
  for (size_t i = 0; i < info.attrs.size(); ++i) {
    if (info.attrs[i].name == name) return values_[i];
  }
  throw TypeError(info.name + ": no attribute '" + name + "'");
}

namespace {

template <class Number>
std::optional<Number> parse_whole(const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && read == end ? std::optional<Number>(number) : std::nullopt;
}

/// A backslash escapes quotes and backslashes.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

std::string float_str(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text;
  // The shortest text that reads back as the same double, with a point whatever the process's locale.
  for (int digits = 6; digits <= 17; ++digits) {
    char buffer[40];
    const auto end = std::to_chars(buffer, std::end(buffer), value, std::chars_format::general, digits).ptr;
    text.assign(buffer, end);
    if (parse_real(text) == value) break;
  }
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::optional<int64_t> parse_integer(const std::string& text) { return parse_whole<int64_t>(text); }

std::optional<double> parse_real(const std::string& text) { return parse_whole<double>(text); }

std::string attr_str(const AttrValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* real = std::get_if<double>(&value)) return float_str(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return quoted(*text);
  std::string out = "[";
  if (const auto* ints = std::get_if<Ints>(&value)) {
    for (size_t i = 0; i < ints->size(); ++i) out += (i > 0 ? "," : "") + std::to_string((*ints)[i]);
  } else {
    const auto& floats = std::get<Floats>(value);
    for (size_t i = 0; i < floats.size(); ++i) out += (i > 0 ? "," : "") + float_str(floats[i]);
  }
  return out + "]";
}

const char* cost_class_name(CostClass cost_class) {
  static constexpr const char* kNames[] = {"Leaf",        "Opaque",    "Elementwise",   "Transcendental",
                                           "Contraction", "Attention", "Normalisation", "Pool",
                                           "Reduction",   "View",      "Movement",      "Host"};
  return kNames[at(cost_class)];
}

uint64_t hash_mix(uint64_t seed, uint64_t value) {
  // splitmix64's finaliser over a combination of both.
  uint64_t z = seed * 0x9e3779b97f4a7c15ULL + value + 0x632be59bd9b4e019ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

uint64_t hash_string(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash_mix(hash, text.size());
}

uint64_t hash_value(uint64_t hash, const AttrValue& value, Zeros zeros) {
  const auto bits = [zeros](auto number) {
    if constexpr (std::is_same_v<decltype(number), double>) {
      return std::bit_cast<uint64_t>(zeros == Zeros::Equal && number == 0 ? 0.0 : number);
    } else {
      return static_cast<uint64_t>(number);
    }
  };
  return std::visit(
      [&](const auto& each) {
        using T = std::decay_t<decltype(each)>;
        if constexpr (std::is_arithmetic_v<T>) {
          return hash_mix(hash, bits(each));
        } else if constexpr (std::is_same_v<T, std::string>) {
          return hash_mix(hash, hash_string(each));
        } else {
          uint64_t all = hash_mix(hash, each.size());
          for (const auto number : each) all = hash_mix(all, bits(number));
          return all;
        }
      },
      value);
}

uint64_t hash_attrs(const Attrs& attrs) {
  uint64_t hash = 1;
  for (const auto& value : attrs.values()) {
    hash = hash_mix(hash, value.index());
    // Lists by their text: plans are stored under this hash, so it must not change.
    const bool is_list = std::holds_alternative<Ints>(value) || std::holds_alternative<Floats>(value);
    hash = hash_value(hash, is_list ? AttrValue(attr_str(value)) : value, Zeros::Distinct);
  }
  return hash;
}

}  // namespace rlopt
