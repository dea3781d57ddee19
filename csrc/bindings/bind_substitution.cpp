// The substitution library: parse, match, apply, explain, verify.
#include "../apply.h"
#include "../match_set.h"
#include "../verify.h"
#include "bind.h"

namespace rlopt {

namespace {

int index_of(const Library& library, const std::string& name) {
  const int index = library.find(name);
  if (index < 0) throw py::key_error("no substitution named '" + name + "'");
  return index;
}

const Substitution& named(const Library& library, const std::string& name) {
  return library.substitutions()[static_cast<size_t>(index_of(library, name))];
}

[[noreturn]] void raise_substitution_error(const std::string& reason, const std::string& name, int line) {
  const py::object type = py::module_::import("torchrlopt.errors").attr("SubstitutionError");
  PyErr_SetObject(type.ptr(), type(reason, py::arg("name") = name, py::arg("line") = line).ptr());
  throw py::error_already_set();
}

Library parse_library(const std::string& text, bool allow_assumed) {
  try {
    std::vector<Substitution> all = parse_substitutions(text);
    if (!allow_assumed) {
      std::erase_if(all, [](const Substitution& each) { return each.proof.starts_with("assumed"); });
    }
    return Library(std::move(all));
  } catch (const SubstitutionError& error) {
    raise_substitution_error(error.reason(), error.name(), error.line());
  }
}

std::string hex(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

py::dict match_to_python(const Library& library, const Match& match, int location) {
  py::dict result;
  result["name"] = library.substitutions()[static_cast<size_t>(match.substitution)].name;
  result["location"] = location;
  result["nodes"] = match.nodes;
  result["num_members"] = match.num_members;
  return result;
}

py::list matches(const Library& library, const Graph& graph, const std::optional<std::string>& name) {
  std::vector<Match> found;
  {
    const int index = name ? index_of(library, *name) : -1;
    const py::gil_scoped_release release;
    found = name ? find_matches(graph, library, index) : find_all_matches(graph, library);
  }
  py::list result;
  int location = 0, previous = -1;
  for (const Match& match : found) {
    location = match.substitution == previous ? location + 1 : 0;
    previous = match.substitution;
    result.append(match_to_python(library, match, location));
  }
  return result;
}

Graph apply(const Library& library, const Graph& graph, const std::string& name, int location) {
  const int index = index_of(library, name);
  Applied applied;
  size_t count = 0;
  {
    const py::gil_scoped_release release;
    const std::vector<Match> found = find_matches(graph, library, index);
    count = found.size();
    if (location >= 0 && static_cast<size_t>(location) < count) {
      applied = apply_match(graph, library, found[static_cast<size_t>(location)]);
    }
  }
  if (location < 0 || static_cast<size_t>(location) >= count) {
    raise_substitution_error(
        "location " + std::to_string(location) + " of " + std::to_string(count) + " matches", name, 0);
  }
  if (!applied.graph) raise_substitution_error(applied.refusal, name, 0);
  return *applied.graph;
}

py::dict verify_to_python(const Library& library, const std::string& name, int bindings, int seeds,
                          uint64_t seed, int max_attempts) {
  VerifyOptions options;
  options.max_attempts = max_attempts;
  options.num_bindings = bindings;
  options.num_seeds = seeds;
  options.seed = seed;
  const int index = index_of(library, name);
  VerifyResult result;
  SignalPoll poll;
  options.interrupted = [&poll] { return poll(); };
  {
    const py::gil_scoped_release release;
    result = verify(library, index, options);
  }
  if (poll.raised()) throw py::error_already_set();
  py::dict dict;
  dict["ok"] = result.ok;
  dict["num_bindings"] = result.num_bindings;
  dict["num_refused"] = result.num_refused;
  dict["num_unmatched"] = result.num_unmatched;
  dict["num_contexts"] = result.num_contexts;
  dict["contexts"] = result.contexts;
  dict["exact_field"] = result.exact_field;
  dict["max_error"] = result.max_error;
  dict["reason"] = result.reason;
  dict["counter_example"] = result.counter_example;
  return dict;
}

}  // namespace

void bind_match_set(py::module_& m) {
  py::class_<MatchSet>(m, "MatchSet", "All matches of a graph, kept up to date from step to step.")
      .def(py::init<Graph, const Library&>(), py::arg("graph"), py::arg("library"))
      .def("after", &MatchSet::after, py::arg("graph"), py::arg("library"),
           "The set of a graph made from this one by steps.")
      .def("__len__", &MatchSet::size)
      .def(
          "matches",
          [](const MatchSet& set, const Library& library) {
            py::list result;
            for (int i = 0; i < static_cast<int>(library.substitutions().size()); ++i) {
              int location = 0;
              set.of(i).for_each([&](const Located& each) {
                result.append(match_to_python(library, *each.match, location++));
              });
            }
            return result;
          },
          py::arg("library"), "As Library.matches.");
}

void bind_substitution(py::module_& m) {
  bind_match_set(m);
  py::class_<Library>(m, "Library", "A parsed substitution library.")
      .def(py::init(&parse_library), py::arg("text"), py::arg("allow_assumed") = true)
      .def_property_readonly("names",
                             [](const Library& library) {
                               std::vector<std::string> names;
                               for (const auto& each : library.substitutions()) names.push_back(each.name);
                               return names;
                             })
      .def_property_readonly("hash", [](const Library& library) { return hex(library.hash()); })
      .def("__len__", [](const Library& library) { return library.substitutions().size(); })
      .def("find", &Library::find, py::arg("name"), "Index of the substitution, -1 when there is none.")
      .def("text", [](const Library& library, const std::string& name) { return named(library, name).text; })
      .def("doc", [](const Library& library, const std::string& name) { return named(library, name).doc; })
      .def("family",
           [](const Library& library, const std::string& name) { return named(library, name).family; })
      .def("is_exact",
           [](const Library& library, const std::string& name) { return named(library, name).exact; })
      .def("proof",
           [](const Library& library, const std::string& name) { return named(library, name).proof; })
      .def(
          "proof_hash",
          [](const Library& library, const std::string& name) { return hex(named(library, name).text_hash); },
          "Of the text that the substitution comes from, its optional inputs included; proofs do not count.")
      .def("matches", &matches, py::arg("graph"), py::arg("name") = py::none(),
           "Matches in canonical order: dicts with name, location, nodes, num_members.")
      .def("apply", &apply, py::arg("graph"), py::arg("name"), py::arg("location"),
           "The graph after one step; SubstitutionError with the reason where it is refused.")
      .def(
          "explain",
          [](const Library& library, const Graph& graph, const std::string& name) {
            return explain(graph, library, index_of(library, name));
          },
          py::arg("graph"), py::arg("name"))
      .def("verify", &verify_to_python, py::arg("name"), py::arg("bindings") = 200, py::arg("seeds") = 2,
           py::arg("seed") = 0, py::arg("max_attempts") = 20000,
           "Exact evaluation on random instances of the pattern and in the six contexts.")
      .def(
          "instances",
          [](const Library& library, const std::string& name, int count, uint64_t seed) {
            return instances_to_python(library, index_of(library, name), count, seed);
          },
          py::arg("name"), py::arg("count"), py::arg("seed") = 0,
          "Distinct instances on which the substitution fires, as `verify` draws them.");
}

}  // namespace rlopt
