// A call whose constant operands are prepared once: what each call brings along goes into their midst.
//
// Python passes arguments on in a tuple, which is made anew at every border: with a thousand weights that is
// a thousand references taken and given back, several times a call. Here a function is called with an array.
#include <algorithm>
#include <optional>

#include "bindings/memory.h"
#include "bindings/modules.h"
#include "bindings/tensors.h"

namespace rlopt {

namespace {

class BoundCall {
 public:
  /// Calls `function` with the items of the template at `positions`, then `results`. These are kept alive,
  /// the items are not: the watch says whether they are there, or somebody holds them where there is none.
  BoundCall(py::object function, const Template& arguments, const std::vector<size_t>& positions,
            const py::tuple& results, py::object watch, py::object states, py::object words)
      : function_(std::move(function)),
        results_(results),
        owners_(py::make_tuple(watch, states, words)),
        watch_(watch.is_none() ? nullptr : watch.cast<const ModuleWatch*>()),
        states_(states.is_none() ? nullptr : states.cast<const TensorStates*>()),
        words_(words.is_none() ? nullptr : words.cast<const MemoryWords*>()) {
    operands_.push_back(nullptr);  // for the object of a method
    for (const size_t position : positions) {
      if (position >= arguments.size()) throw py::index_error("no such argument");
      PyObject* item = arguments.item(position);
      if (item == nullptr) places_.push_back({operands_.size(), arguments.value_at(position)});
      operands_.push_back(item);
    }
    for (const py::handle& result : results) operands_.push_back(result.ptr());
  }

  /// What the function returns for these values; None where something has changed, or after the end.
  py::object operator()(const py::tuple& values) const {
    if (is_over_ || !is_unchanged()) return py::none();
    // Nothing that runs Python comes in between: all operands are alive until the function holds them.
    std::vector<PyObject*> operands(operands_);
    for (const Place& place : places_) {
      operands[place.operand] = PyTuple_GetItem(values.ptr(), static_cast<Py_ssize_t>(place.value));
      if (operands[place.operand] == nullptr) throw py::error_already_set();
    }
    const py::object function = function_;  // `end` may be called meanwhile
    PyObject* outputs = PyObject_Vectorcall(function.ptr(), operands.data() + 1,
                                            (operands.size() - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (outputs == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(outputs);
  }

  /// Lets go of the results, which are those of weights that are no more.
  void end() {
    is_over_ = true;
    results_ = py::tuple();
  }

 private:
  struct Place {
    size_t operand;
    size_t value;
  };

  bool is_unchanged() const {
    return (watch_ == nullptr || watch_->is_unchanged()) && (states_ == nullptr || states_->is_unchanged()) &&
           (words_ == nullptr || words_->is_unchanged());
  }

  py::object function_;
  py::tuple results_;
  py::tuple owners_;  // of what follows
  const ModuleWatch* watch_;
  const TensorStates* states_;
  const MemoryWords* words_;
  std::vector<PyObject*> operands_;
  std::vector<Place> places_;
  bool is_over_ = false;
};

}  // namespace

void bind_bound_call(py::module_& m) {
  py::class_<BoundCall>(m, "BoundCall", "A call whose constant operands are prepared once.")
      .def(py::init<py::object, const Template&, const std::vector<size_t>&, const py::tuple&, py::object,
                    py::object, py::object>(),
           py::arg("function"), py::arg("template"), py::arg("positions"), py::arg("results"),
           py::arg("watch") = py::none(), py::arg("states") = py::none(), py::arg("words") = py::none())
      .def("__call__", &BoundCall::operator(), py::arg("values"),
           "What the function returns; None where something that is looked at has changed, or after the end.")
      .def("end", &BoundCall::end, "Let go of the results.");
}

}  // namespace rlopt
