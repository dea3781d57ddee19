// Prints graphs as SSA text; also the small lexer that graph text and substitution text share.
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

/// Names may start with % or @ or _; "#" starts a comment; strings are in double quotes, as printed by
/// `attr_str`; "=>", "==", "!=", "<=", ">=", "&&", "||" are one symbol each. Throws ParseError with the line.
std::vector<Token> tokenize(const std::string& text);

/// Prints text that `parse_graph` reads; values keep their external names if unique, otherwise v0, v1, ...
std::string print_graph(const Graph& graph);
/// The same with canonical names only: equal for equal structures; the plan store's key is derived from it.
std::string canonical_text(const Graph& graph);

}  // namespace rlopt
