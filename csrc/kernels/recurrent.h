// A recurrent layer: LSTM, GRU, or an Elman network with tanh or ReLU, in one or both directions.
//
// The products with the inputs of some dozens of steps are computed together, then step by step those with
// the state, whose results become gates without leaving the cache. A thread has the same hidden units in all
// steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rlopt::kernels {

/// In the order of `CELLS` in executors/eager/kernels/recurrent.py.
enum class Cell : uint8_t { kLstm, kGru, kTanh, kRelu };

/// Sums of a panel: the gates of some units, or units without gates.
constexpr int64_t kSlots = 4;

constexpr int64_t num_gates(Cell cell) { return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1; }

/// Vectors of weights for each term of a panel: those of a GRU's new state fill two slots, one for inputs and
/// one for states, as the reset gate multiplies the latter.
constexpr int64_t panel_width(Cell cell) { return cell == Cell::kGru ? 3 : kSlots; }

struct RecurrentLayout {
  Cell cell;
  int64_t inputs, hidden, directions;
};

/// Floats of the packed weights and biases. Throws std::invalid_argument for sizes that have no kernel.
size_t packed_size(const RecurrentLayout& layout);

/// The parameters of one direction, as PyTorch has them: the gates of a cell one after the other.
struct RecurrentWeights {
  const float *of_inputs, *of_state;     // [gates * hidden, inputs] and [gates * hidden, hidden]
  const float *input_bias, *state_bias;  // [gates * hidden], or null
};

/// Writes the packed weights of all directions, one after the other.
void pack(const RecurrentWeights* weights, const RecurrentLayout& layout, float* to);

/// Strides are in elements; the numbers of a row are contiguous.
struct Recurrent {
  RecurrentLayout layout;
  int64_t steps, batch;
  const float* x;
  int64_t x_of_step, x_of_batch;
  const float* packed;
  const float *first_h, *first_c;  // [directions, batch, hidden]; null for zeros
  float* y;                        // [steps, batch, directions * hidden]
  float *h, *c;                    // the last states, [directions, batch, hidden]; `c` only of an LSTM
};

/// How the units of a direction are cut into panels, for vectors of this many lanes.
struct RecurrentPanels {
  int64_t units, count, size;  // units of a panel, panels of a direction, floats of a packed panel

  RecurrentPanels(const RecurrentLayout& layout, int64_t lanes)
      : units(num_gates(layout.cell) == 1 ? kSlots * lanes : lanes),
        count((layout.hidden + units - 1) / units),
        size(lanes * (kSlots + panel_width(layout.cell) * (layout.inputs + layout.hidden))) {}

  /// Steps whose products with the inputs are computed together.
  static int64_t steps_of_chunk(const Recurrent& given) {
    constexpr int64_t kRows = 48;
    return std::clamp<int64_t>(kRows / given.batch, 1, given.steps);
  }
};

/// Runs a layer in the threads of the loaded OpenMP. Throws std::bad_alloc.
void run(const Recurrent& given, int num_threads);

}  // namespace rlopt::kernels
