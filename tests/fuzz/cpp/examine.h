// What has to hold of every graph and substitution that the core accepts, whoever made them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/text.h"
#include "cost/cost.h"
#include "infer/infer.h"
#include "match/apply.h"

namespace rlopt::fuzz {

/// Ends the program, which the fuzzer reports with the input that led here.
inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what.c_str());
  std::abort();
}

/// The handwritten library, all files. The fuzzers are started in the root of the repository.
inline const Library& library() {
  static const Library parsed = [] {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator("torchrlopt/substitutions/library")) {
      if (entry.path().extension() == ".txt") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    std::stringstream text;
    for (const auto& path : paths) text << std::ifstream(path).rdbuf();
    return Library(parse_substitutions(text.str()));
  }();
  return parsed;
}

/// Wiring and types; text that reads back to the same graph; a price; matches that apply, or are refused with
/// a reason.
inline void examine(const Graph& graph) {
  constexpr size_t kMaxApplied = 8;
  check_graph(graph);
  const std::string text = print_graph(graph);
  require(parse_graph(text).hash() == graph.hash(), "this text reads back to another graph:\n" + text);
  const CostModel cost(DeviceModel{}, nullptr, Sizes{});
  cost.total(graph);
  cost.peak_bytes(graph);
  const std::vector<Match> matches = find_all_matches(graph, library());
  const size_t stride = matches.size() / kMaxApplied + 1;
  for (size_t i = 0; i < matches.size(); i += stride) {
    const Applied applied = apply_match(graph, library(), matches[i]);
    require(applied.graph.has_value() != !applied.refusal.empty(), "neither applied nor refused");
    if (applied.graph) check_graph(*applied.graph);
  }
}

}  // namespace rlopt::fuzz
