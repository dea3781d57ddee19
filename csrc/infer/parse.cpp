// Parses graphs from SSA text.
#include <limits>
#include <unordered_map>

#include "core/text.h"
#include "infer/infer.h"

namespace rlopt {

namespace {

/// Recursive-descent parser of one graph's tokens.
class GraphParser {
 public:
  explicit GraphParser(const std::string& text) : tokens_(tokenize(text)) {}

  Graph parse() {
    expect("graph");
    expect("(");
    while (!take(")")) {
      parse_input();
      if (!take(",")) {
        expect(")");
        break;
      }
    }
    expect("{");
    while (peek().text != "return") parse_node();
    next();
    std::vector<Value> outputs;
    std::vector<std::string> names;
    while (peek().text != "}") {
      if (peek().text == "_") fail("a value");
      names.push_back(peek().text);
      outputs.push_back(parse_value());
      if (!take(",")) break;
    }
    expect("}");
    if (peek().kind != TokenKind::End) fail("nothing after the closing brace");
    edit_.set_outputs(std::move(outputs), std::move(names));
    return edit_.finish();
  }

 private:
  const Token& peek() const { return tokens_[pos_]; }
  const Token& next() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }
  bool take(const std::string& symbol) {
    if (peek().text != symbol || peek().kind == TokenKind::String) return false;
    next();
    return true;
  }
  static std::string where(int line) { return "graph text, line " + std::to_string(line) + ": "; }
  [[noreturn]] void fail(const std::string& expected) const {
    throw ParseError(where(peek().line) + "expected " + expected + ", got '" + peek().text + "'");
  }
  /// Adds the line to errors thrown by `make`.
  template <class Make>
  static auto at_line(int line, const Make& make) {
    try {
      return make();
    } catch (const TypeError& error) {
      throw TypeError(where(line) + error.what());
    } catch (const ParseError& error) {
      throw ParseError(where(line) + error.what());
    }
  }
  void expect(const std::string& symbol) {
    if (!take(symbol)) fail("'" + symbol + "'");
  }
  std::string parse_name() {
    if (peek().kind != TokenKind::Name) fail("a name");
    return next().text;
  }
  TensorType parse_type() {
    const int line = peek().line;
    std::string text = parse_name();
    expect("[");
    text += "[";
    while (peek().text != "]") {
      if (peek().kind == TokenKind::End) fail("']'");
      text += next().text;
    }
    next();
    return at_line(line, [&] { return TensorType::parse(text + "]"); });
  }
  Value parse_value() {
    const std::string name = parse_name();
    if (name == "_") return {};
    const auto it = values_.find(name);
    if (it == values_.end()) {
      --pos_;
      fail("a value defined above");
    }
    return it->second;
  }
  void define(const std::string& name, Value value) {
    if (!values_.emplace(name, value).second) {
      throw ParseError(where(peek().line) + "'" + name + "' is defined twice");
    }
  }
  void parse_input() {
    const int line = peek().line;
    const std::string name = parse_name();
    expect(":");
    const TensorType type = parse_type();
    const bool is_weight = name[0] == '%';
    define(
        name,
        {at_line(line, [&] { return edit_.add_input(is_weight ? name.substr(1) : name, type, is_weight); }),
         0});
  }
  AttrValue parse_scalar() {
    const std::string sign = take("-") ? "-" : "";
    const Token& token = peek();
    const bool is_name = token.kind == TokenKind::Name && (token.text == "inf" || token.text == "nan");
    if (!is_name && token.kind != TokenKind::Number) fail("a number");
    if (is_name) {
      using Limits = std::numeric_limits<double>;
      const double magnitude = next().text == "inf" ? Limits::infinity() : Limits::quiet_NaN();
      return sign.empty() ? magnitude : -magnitude;
    }
    const std::string text = sign + token.text;
    if (text.find_first_of(".eE") != std::string::npos) {
      const auto real = parse_real(text);
      if (!real) fail("a number of 64 bits");
      next();
      return *real;
    }
    const auto integer = parse_integer(text);
    if (!integer) fail("a number of 64 bits");
    next();
    return *integer;
  }
  AttrValue parse_attr_value() {
    if (peek().kind == TokenKind::String) return next().text;
    if (!take("[")) return parse_scalar();
    Ints ints;
    Floats floats;
    bool all_ints = true;
    while (!take("]")) {
      const AttrValue value = parse_scalar();
      if (const auto* number = std::get_if<int64_t>(&value)) {
        ints.push_back(*number);
        floats.push_back(static_cast<double>(*number));
      } else {
        all_ints = false;
        floats.push_back(std::get<double>(value));
      }
      if (!take(",")) {
        expect("]");
        break;
      }
    }
    if (all_ints) return ints;
    return floats;
  }
  void parse_node() {
    const int line = peek().line;
    std::vector<std::string> names;
    std::vector<TensorType> written;
    do {
      names.push_back(parse_name());
      if (take(":")) written.push_back(parse_type());
    } while (take(","));
    expect("=");
    const std::string op_name = parse_name();
    const Op op = find_op(op_name);
    if (op == Op::Opaque && op_name != "Opaque") {
      --pos_;
      fail("an operator of ops.def");
    }
    expect("(");
    std::vector<Value> inputs;
    std::vector<std::pair<std::string, AttrValue>> attrs;
    while (peek().text != ";" && peek().text != ")") {
      inputs.push_back(parse_value());
      if (!take(",")) break;
    }
    if (take(";")) {
      do {
        const std::string name = parse_name();
        expect("=");
        attrs.emplace_back(name, parse_attr_value());
      } while (take(","));
    }
    expect(")");
    const NodeId id = at_line(
        line, [&] { return add(op, Attrs::make(op, attrs), std::move(inputs), names, std::move(written)); });
    for (size_t i = 0; i < names.size(); ++i) define(names[i], {id, static_cast<int32_t>(i)});
  }
  NodeId add(Op op, AttrsPtr attrs, std::vector<Value> inputs, const std::vector<std::string>& names,
             std::vector<TensorType> written) {
    const NodeNames outside{names[0], names};
    NodeId id = -1;
    if (op_info(op).infer == InferRule::Leaf) {
      if (written.size() != names.size())
        throw TypeError(op_info(op).name + ": the types of its outputs must be written");
      id = edit_.add_node(op, std::move(attrs), std::move(inputs), std::move(written), outside);
    } else {
      id = add_inferred(edit_, op, std::move(attrs), std::move(inputs), outside);
    }
    if (edit_.graph().node(id).num_outputs() != static_cast<int>(names.size())) {
      throw TypeError(op_info(op).name + ": gives " + std::to_string(edit_.graph().node(id).num_outputs()) +
                      " outputs, the text names " + std::to_string(names.size()));
    }
    return id;
  }

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  GraphEdit edit_;
  std::unordered_map<std::string, Value> values_;
};

}  // namespace

Graph parse_graph(const std::string& text) { return GraphParser(text).parse(); }

}  // namespace rlopt
