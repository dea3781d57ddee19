// The substitution library: parse, match, apply, explain.
#include "bindings/bind.h"
#include "match/apply.h"
#include "match/set.h"

namespace rlopt {

namespace {

const Substitution& named(const Library& library, const std::string& name) {
  return library.substitutions()[at(index_of(library, name))];
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

py::dict match_to_python(const Library& library, const Match& match, int location) {
  py::dict result;
  result["name"] = library.substitutions()[at(match.substitution)].name;
  result["location"] = location;
  result["nodes"] = match.nodes;
  result["num_members"] = match.num_members;
  return result;
}

py::list matches(const Library& library, const Graph& graph, const std::optional<std::string>& name) {
  const int index = name ? index_of(library, *name) : -1;
  const std::vector<Match> found = without_gil(
      [&] { return name ? find_matches(graph, library, index) : find_all_matches(graph, library); });
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
  const std::vector<Match> found = without_gil([&] { return find_matches(graph, library, index); });
  if (location < 0 || at(location) >= found.size()) {
    raise_substitution_error(
        "location " + std::to_string(location) + " of " + std::to_string(found.size()) + " matches", name, 0);
  }
  const Applied applied = without_gil([&] { return apply_match(graph, library, found[at(location)]); });
  if (!applied.graph) raise_substitution_error(applied.refusal, name, 0);
  return *applied.graph;
}

}  // namespace

void bind_match_set(py::module_& m) {
  py::class_<MatchSet>(m, "MatchSet", "All matches of a graph, kept up to date from step to step.")
      .def(py::init<Graph, const Library&>(), py::arg("graph"), py::arg("library"))
      .def("after", &MatchSet::after, py::arg("graph"), py::arg("library"),
           "The set of a graph made from this one by steps.")
      .def("__len__", &MatchSet::size)
      .def(
          "position",
          [](const MatchSet& set, NodeId id) {
            set.graph().at(id);
            return set.order().position(id);
          },
          py::arg("node"), "What orders the nodes: what a node reads has a smaller one.")
      .def(
          "matches",
          [](const MatchSet& set, const Library& library) {
            set.require(library);
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

void bind_library(py::module_& m) {
  py::class_<Library> library(m, "Library", "A parsed substitution library.");
  const auto def = [&library](const char* name, auto read, const char* doc) {
    library.def(
        name, [read](const Library& of, const std::string& each) { return read(named(of, each)); },
        py::arg("name"), doc);
  };
  def("text", [](const Substitution& each) { return each.text; }, "As it is written in the library.");
  def("doc", [](const Substitution& each) { return each.doc; }, "The comment lines just above.");
  def(
      "family", [](const Substitution& each) { return each.family; },
      "Of the last comment `# family:` before it.");
  def(
      "is_exact", [](const Substitution& each) { return each.exact; },
      "Bit-exact, also for NaN, Inf and -0.");
  def("proof", [](const Substitution& each) { return each.proof; }, "How it was proven.");
  def(
      "proof_hash", [](const Substitution& each) { return hex(each.text_hash); },
      "Of the text that the substitution comes from, its optional inputs included; proofs do not count.");
  library.def(py::init(&parse_library), py::arg("text"), py::arg("allow_assumed") = true)
      .def_property_readonly("names",
                             [](const Library& library) {
                               std::vector<std::string> names;
                               for (const auto& each : library.substitutions()) names.push_back(each.name);
                               return names;
                             })
      .def_property_readonly("hash", [](const Library& library) { return hex(library.hash()); })
      .def("__len__", [](const Library& library) { return library.substitutions().size(); })
      .def("find", &Library::find, py::arg("name"), "Index of the substitution, -1 when there is none.")
      .def("matches", &matches, py::arg("graph"), py::arg("name") = py::none(),
           "Matches in canonical order: dicts with name, location, nodes, num_members.")
      .def("apply", &apply, py::arg("graph"), py::arg("name"), py::arg("location"),
           "The graph after one step; SubstitutionError with the reason where it is refused.")
      .def(
          "explain",
          [](const Library& library, const Graph& graph, const std::string& name) {
            return explain(graph, library, index_of(library, name));
          },
          py::arg("graph"), py::arg("name"));
  bind_match_set(m);  // after the library, so that its signatures can name it
}

}  // namespace rlopt
