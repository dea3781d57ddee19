#include "core/text.h"

#include <cctype>
#include <map>
#include <set>

namespace rlopt {

namespace {

bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '%' || c == '@';
}
bool is_name_part(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; }

/// External names may hold anything; the text keeps those that its lexer reads as one name.
bool is_printable_name(const std::string& name) {
  if (name.empty() || (std::isalpha(static_cast<unsigned char>(name[0])) == 0 && name[0] != '_'))
    return false;
  if (name == "_" || name == "return" || name == "graph") return false;
  for (const char c : name) {
    if (!is_name_part(c)) return false;
  }
  return true;
}

}  // namespace

std::vector<Token> tokenize(const std::string& text) {
  static const std::vector<std::string> kPairs{"=>", "==", "!=", "<=", ">=", "&&", "||", "//"};
  std::vector<Token> tokens;
  int line = 1;
  size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      ++i;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++i;
    } else if (c == '#') {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (is_name_start(c)) {
      const size_t start = i++;
      while (i < text.size() && is_name_part(text[i])) ++i;
      tokens.push_back({TokenKind::Name, text.substr(start, i - start), line});
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      const size_t start = i;
      while (i < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '.' ||
              ((text[i] == '+' || text[i] == '-') && (text[i - 1] == 'e' || text[i - 1] == 'E')))) {
        ++i;
      }
      tokens.push_back({TokenKind::Number, text.substr(start, i - start), line});
    } else if (c == '"') {
      Token token{TokenKind::String, "", line};
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\' && i + 1 < text.size()) ++i;  // escapes the next character
        line += text[i] == '\n' ? 1 : 0;
        token.text += text[i];
      }
      if (i == text.size()) throw ParseError("line " + std::to_string(token.line) + ": string is not closed");
      ++i;
      tokens.push_back(std::move(token));
    } else {
      std::string symbol(1, c);
      for (const auto& pair : kPairs) {
        if (text.compare(i, 2, pair) == 0) symbol = pair;
      }
      i += symbol.size();
      tokens.push_back({TokenKind::Symbol, symbol, line});
    }
  }
  tokens.push_back({TokenKind::End, "", line});
  return tokens;
}

namespace {

/// Gives every value of a graph a name.
class Names {
 public:
  Names(const Graph& graph, bool canonical) : graph_(graph), canonical_(canonical) {
    for (const NodeId id : graph.topological_order()) {
      for (int i = 0; i < graph.node(id).num_outputs(); ++i) name_value({id, i});
    }
  }
  std::string operator()(Value value) const {
    if (!value.present()) return "_";
    const bool is_weight = graph_.node(value.node).op == Op::Weight;
    return (is_weight ? "%" : "") + names_.at({value.node, value.index});
  }

 private:
  void name_value(Value value) {
    const auto& outside = graph_.node(value.node).names->outputs;
    const auto index = static_cast<size_t>(value.index);
    std::string name = canonical_ || index >= outside.size() ? "" : outside[index];
    if (!is_printable_name(name) || used_.contains(name)) {
      do {
        name = "v" + std::to_string(counter_++);
      } while (used_.contains(name));
    }
    used_.insert(name);
    names_[{value.node, value.index}] = name;
  }

  const Graph& graph_;
  bool canonical_;
  int counter_ = 0;
  std::set<std::string> used_;
  std::map<std::pair<NodeId, int32_t>, std::string> names_;
};

std::string print_attrs(const Node& node) {
  const OpInfo& info = node.info();
  std::string text;
  for (size_t i = 0; i < info.attrs.size(); ++i) {
    const AttrValue& value = node.attrs->values()[i];
    if (!info.attrs[i].required && value == info.attrs[i].default_value) continue;
    text += (text.empty() ? "; " : ", ") + info.attrs[i].name + "=" + attr_str(value);
  }
  return text;
}

std::string print(const Graph& graph, bool canonical) {
  const Names name(graph, canonical);
  std::string text = "graph (";
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Value value{graph.inputs()[i], 0};
    text += (i > 0 ? ", " : "") + name(value) + ": " + graph.type(value).str();
  }
  text += ") {\n";
  for (const NodeId id : graph.topological_order()) {
    const Node& node = graph.node(id);
    if (node.op == Op::Input || node.op == Op::Weight) continue;
    text += "  ";
    for (int i = 0; i < node.num_outputs(); ++i) {
      text += (i > 0 ? ", " : "") + name({id, i});
      // Types of leaves cannot be inferred, so they are written out.
      if (node.info().infer == InferRule::Leaf) text += ": " + (*node.types)[at(i)].str();
    }
    text += " = " + node.info().name + "(";
    for (size_t i = 0; i < node.inputs.size(); ++i) text += (i > 0 ? ", " : "") + name(node.inputs[i]);
    text += print_attrs(node) + ")\n";
  }
  text += "  return ";
  for (size_t i = 0; i < graph.outputs().size(); ++i) text += (i > 0 ? ", " : "") + name(graph.outputs()[i]);
  return text + "\n}\n";
}

}  // namespace

std::string print_graph(const Graph& graph) { return print(graph, false); }

std::string canonical_text(const Graph& graph) { return print(graph, true); }

}  // namespace rlopt
