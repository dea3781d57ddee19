// Parses substitution text into its syntax tree.
#include <cctype>
#include <limits>
#include <set>
#include <sstream>

#include "library/substitution_syntax.h"

namespace rlopt {

SubstitutionError::SubstitutionError(std::string name, int line, std::string reason)
    : ParseError((name.empty() ? "substitution text" : "substitution " + name) + ", line " +
                 std::to_string(line) + ": " + reason),
      name_(std::move(name)),
      line_(line),
      reason_(std::move(reason)) {}

namespace syntax {

Token Reader::next() {
  const Token token = peek();
  if (pos_ < tokens_.size()) ++pos_;
  return token;
}

bool Reader::is_symbol(const std::string& symbol, size_t ahead) const {
  const Token& token = peek(ahead);
  return token.kind == TokenKind::Symbol && token.text == symbol;
}

bool Reader::is_name(const std::string& name, size_t ahead) const {
  const Token& token = peek(ahead);
  return token.kind == TokenKind::Name && token.text == name;
}

bool Reader::take(const std::string& symbol) {
  if (!is_symbol(symbol)) return false;
  next();
  return true;
}

void Reader::expect(const std::string& symbol, const std::string& place) {
  if (take(symbol)) return;
  fail("expected '" + symbol + "' in " + place + ", got " + (at_end() ? "the end" : "'" + peek().text + "'"));
}

void Reader::fail(const std::string& reason) const { fail(reason, peek().line); }

void Reader::fail(const std::string& reason, int line) const {
  throw SubstitutionError(substitution, line, reason);
}

namespace {

const std::string kFamilyMark = "# family: ";

bool is_lower_snake(const std::string& name) {
  if (name.empty() || std::islower(static_cast<unsigned char>(name[0])) == 0) return false;
  for (const char c : name) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::islower(letter) == 0 && std::isdigit(letter) == 0 && c != '_') return false;
  }
  return true;
}

/// Parses whole substitutions.
class SubstitutionReader {
 public:
  explicit SubstitutionReader(const std::string& text) : reader_(tokens_of(text)) {
    std::stringstream stream(text);
    for (std::string line; std::getline(stream, line);) source_.push_back(line);
  }

  std::vector<Substitution> read() {
    std::vector<Substitution> all;
    while (!reader_.at_end()) {
      reader_.substitution.clear();
      if (!reader_.is_name("substitution")) {
        reader_.fail("expected 'substitution <name>', got '" + reader_.peek().text + "'");
      }
      all.push_back(read_one());
    }
    return all;
  }

 private:
  static std::vector<Token> tokens_of(const std::string& text) {
    try {
      return tokenize(text);
    } catch (const ParseError& error) {  // the lexer's message starts with "line <n>: "
      const std::string message = error.what();
      const size_t colon = message.find(": ");
      const int line = message.starts_with("line ") ? std::atoi(message.c_str() + 5) : 0;
      throw SubstitutionError("", line, colon == std::string::npos ? message : message.substr(colon + 2));
    }
  }

  Substitution read_one() {
    Substitution result;
    result.line = reader_.next().line;
    result.doc = comment_above(result.line);
    result.family = family_above(result.line);
    result.name = read_name("the name of a substitution");
    reader_.substitution = result.name;
    if (!is_lower_snake(result.name)) {
      reader_.fail("the name of a substitution is verb_object in lower case letters, digits and _",
                   result.line);
    }
    if (reader_.is_name("exact") && reader_.peek().line == result.line) {
      reader_.next();
      result.exact = true;
    }
    while (!reader_.is_symbol("=>")) {
      if (at_section()) reader_.fail("expected a line of the pattern or '=>', got '" + shown() + "'");
      result.pattern.push_back(read_line());
    }
    reader_.next();
    while (!at_section()) result.replacement.push_back(read_line());
    if (reader_.is_name("where")) {
      reader_.next();
      while (!at_section()) {
        if (reader_.is_name("let") && reader_.is_symbol("=", 2)) {
          read_let(result);
        } else {
          result.conditions.push_back(read_expression(reader_));
        }
        reader_.take(",");
      }
    }
    if (reader_.is_name("proof")) result.proof = rest_of_line();
    if (!reader_.at_end() && !reader_.is_name("substitution")) {
      reader_.fail("expected the next substitution, got '" + shown() + "'");
    }
    return result;
  }

  void read_let(Substitution& result) {
    reader_.next();
    const std::string name = read_name("the name of a let");
    reader_.next();
    result.lets.emplace_back(name, read_expression(reader_));
  }

  bool at_section() const {
    return reader_.at_end() || reader_.is_name("where") || reader_.is_name("proof") ||
           (reader_.is_name("substitution") && !reader_.is_symbol("=", 1) && !reader_.is_symbol(",", 1));
  }

  std::string shown() const { return reader_.at_end() ? "the end of the text" : reader_.peek().text; }

  /// The raw text without a comment: a hash such as 12e45678 must not be read as a number.
  std::string rest_of_line() {
    const Token first = reader_.next();
    while (!reader_.at_end() && reader_.peek().line == first.line) reader_.next();
    std::string text = source_[static_cast<size_t>(first.line) - 1];
    text = text.substr(0, text.find('#'));
    text = text.substr(text.find(first.text) + first.text.size());
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string::npos) reader_.fail("a proof has a method: proof <method> <hash>", first.line);
    return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
  }

  std::string comment_above(int line) const {
    std::string text;
    for (int i = line - 2; i >= 0; --i) {
      const std::string& above = source_[at(i)];
      const size_t start = above.find_first_not_of(" \t");
      if (start == std::string::npos || above[start] != '#') break;
      if (above.starts_with(kFamilyMark)) break;
      const size_t first = above.find_first_not_of("# \t", start);
      text = (first == std::string::npos ? "" : above.substr(first)) + (text.empty() ? "" : "\n" + text);
    }
    return text;
  }

  /// The last comment "# family: <name>" above the line.
  std::string family_above(int line) const {
    for (int i = line - 2; i >= 0; --i) {
      const std::string& above = source_[at(i)];
      if (above.starts_with(kFamilyMark)) return above.substr(kFamilyMark.size());
    }
    return "";
  }

  std::string read_name(const std::string& what) {
    if (reader_.peek().kind != TokenKind::Name) reader_.fail("expected " + what + ", got '" + shown() + "'");
    return reader_.next().text;
  }

  Tensor read_tensor(const std::string& place) {
    Tensor tensor;
    tensor.name = read_name("the name of a tensor in " + place);
    if (tensor.name == "_") return tensor;
    if (!is_lower_snake(tensor.name)) {
      reader_.fail("'" + tensor.name + "': names of tensors are lower case letters, digits and _");
    }
    tensor.starred = reader_.take("*");
    return tensor;
  }

  Line read_line() {
    Line line;
    line.line = reader_.peek().line;
    do {
      line.outs.push_back(read_tensor("the outputs"));
    } while (reader_.take(","));
    reader_.expect("=", "the line");
    if (!reader_.is_symbol("(", 1)) {
      line.ins.push_back(read_tensor("the right side"));
      return line;
    }
    line.op = read_name("an operator");
    reader_.expect("(", line.op);
    while (!reader_.is_symbol(")") && !reader_.is_symbol(";")) {
      if (!line.ins.empty()) reader_.expect(",", "the inputs of " + line.op);
      line.ins.push_back(read_input());
    }
    if (reader_.take(";")) read_attributes(line);
    reader_.expect(")", line.op);
    return line;
  }

  Tensor read_input() {
    const bool is_inf = reader_.is_name("inf") || (reader_.is_symbol("-") && reader_.is_name("inf", 1));
    const bool is_number = reader_.peek().kind == TokenKind::Number || reader_.is_symbol("-");
    if (!is_inf && !is_number) {
      Tensor tensor = read_tensor("the inputs");
      tensor.is_optional = !tensor.starred && tensor.name != "_" && reader_.take("?");
      return tensor;
    }
    const ExprPtr expr = read_expression(reader_);
    Tensor tensor;
    if (expr->kind == Expr::Kind::Int) tensor.literal = static_cast<double>(expr->int_value);
    if (expr->kind == Expr::Kind::Float) tensor.literal = expr->float_value;
    if (!tensor.literal) {
      reader_.fail("an input is a name, _ or a number; write Constant(x; value=[..]) for a computed one");
    }
    return tensor;
  }

  void read_attributes(Line& line) {
    std::set<std::string> seen;
    while (!reader_.is_symbol(")")) {
      const std::string name = read_name("an attribute of " + line.op);
      if (name[0] == '@') {
        if (name.size() == 1) reader_.fail("'@' needs a name, such as @a");
        line.rest = name.substr(1);
        return;
      }
      if (!seen.insert(name).second) reader_.fail("attribute '" + name + "' is given twice");
      reader_.expect("=", "attribute '" + name + "'");
      line.attrs.emplace_back(name, read_expression(reader_));
      if (!reader_.is_symbol(")")) reader_.expect(",", "the attributes of " + line.op);
    }
  }

  Reader reader_;
  std::vector<std::string> source_;
};

}  // namespace
}  // namespace syntax

std::vector<Substitution> parse_substitutions(const std::string& text) {
  std::vector<Substitution> library;
  std::set<std::string> names;
  for (const syntax::Substitution& raw : syntax::SubstitutionReader(text).read()) {
    const size_t first = library.size();
    for (const syntax::Substitution& each : syntax::expand(raw)) {
      if (!names.insert(each.name).second) {
        throw SubstitutionError(each.name, each.line, "there is another substitution of this name");
      }
      library.push_back(syntax::resolve(each));
    }
    const uint64_t hash = library_hash({library.begin() + static_cast<long>(first), library.end()});
    for (size_t i = first; i < library.size(); ++i) library[i].text_hash = hash;
  }
  return library;
}

}  // namespace rlopt
