// Graphs printed as SSA text, and the small lexer that graph text and substitution text share.
#pragma once

#include <string>
#include <vector>

#include "core/graph.h"

namespace rlopt {

enum class TokenKind : uint8_t { Name, Number, String, Symbol, End };

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

/// Names may start with % or @ or _; "#" starts a comment; strings are in double quotes, as `attr_str` prints
/// them; "=>", "==", "!=", "<=", ">=", "&&", "||" are one symbol each. Throws ParseError naming the line.
std::vector<Token> tokenize(const std::string& text);

/// Prints what `parse_graph` reads; values are named by their outside names where unique, else v0, v1, ...
std::string print_graph(const Graph& graph);
/// The same with canonical names only: equal for equal structures; the text behind the plan store's key.
std::string canonical_text(const Graph& graph);

}  // namespace rlopt
