// libFuzzer: the bytes are substitution text. It is refused with SubstitutionError, or gives a library that
// prints what reads back to an equal one, and that matches and applies without breaking a graph.
#include "examine.h"

namespace rlopt {

namespace {

/// A bit of everything: most patterns that come of mutated library text match somewhere.
const Graph& playground() {
  static const Graph graph = parse_graph(R"(
    graph (x: f32[2,4,s0,8], y: f32[2,4,s0,8], m: f32[s1,8], k: i64[3], %w: f32[6,4,3,3], %b: f32[6], %d: f32[8,8]) {
      half: f32[] = Constant(; value=[0.5])
      a = Add(x, y)
      r = Relu(a)
      c = Conv(r, %w, %b; pads=[1,1,1,1])
      d = Conv(r, %w; pads=[1,1,1,1])
      e = Concat(c, d; axis=1)
      f = Mul(e, half)
      s1a, s1b = Split(f; axis=1, sizes=[6,6])
      g = Transpose(s1a; perm=[0,2,1,3])
      h = Transpose(g; perm=[0,2,1,3])
      n = MatMul(m, %d)
      o = MatMul(m, %d)
      p = Add(n, o)
      q = Softmax(p; axis=-1)
      t = ReduceMean(q; axes=[1], keepdims=1)
      u = Sub(q, t)
      v = Mul(u, u)
      i = Add(k, k)
      return h, s1b, v, i
    })");
  return graph;
}

void match_and_apply(const Library& library, int substitution) {
  constexpr size_t kMaxApplied = 4;
  const std::vector<Match> matches = find_matches(playground(), library, substitution);
  for (size_t i = 0; i < std::min(matches.size(), kMaxApplied); ++i) {
    const Applied applied = apply_match(playground(), library, matches[i]);
    fuzz::require(applied.graph.has_value() != !applied.refusal.empty(), "neither applied nor refused");
    if (applied.graph) check_graph(*applied.graph);
  }
  explain(playground(), library, substitution);
}

}  // namespace

}  // namespace rlopt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rlopt;
  try {
    const std::vector<Substitution> parsed =
        parse_substitutions(std::string(reinterpret_cast<const char*>(data), size));
    const Library library(parsed);
    std::string text;
    for (const Substitution& each : parsed) text += print_substitution(each);
    const std::vector<Substitution> again = parse_substitutions(text);
    fuzz::require(library_hash(again) == library.hash(), "this text reads back to another library:\n" + text);
    for (int i = 0; i < static_cast<int>(parsed.size()); ++i) match_and_apply(library, i);
  } catch (const SubstitutionError&) {
  }
  return 0;
}
