#include "kernels/recurrent.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>

#include "kernels/job.h"
#include "kernels/openmp.h"

namespace rlopt::kernels {

namespace {

/// Multiplications of a step per thread that are worth a barrier, and those of all steps that are worth
/// threads.
constexpr double kLeastOfStep = 1e5, kLeastOfAll = 2e5;

int64_t vector_size() { return kernels(Element::kFloat32)->vector_size; }

}  // namespace

size_t packed_size(const RecurrentLayout& layout) {
  constexpr int64_t kMost = 1 << 15;
  if (layout.inputs < 1 || layout.inputs > kMost || layout.hidden < 1 || layout.hidden > kMost ||
      layout.directions < 1 || layout.directions > 2)
    throw std::invalid_argument("there is no kernel for a recurrent layer of these sizes");
  const RecurrentPanels panels(layout, vector_size());
  return static_cast<size_t>(layout.directions * panels.count * panels.size);
}

void pack(const RecurrentWeights* weights, const RecurrentLayout& layout, float* to) {
  const int64_t lanes = vector_size(), gates = num_gates(layout.cell), width = panel_width(layout.cell);
  const RecurrentPanels panels(layout, lanes);
  std::fill(to, to + packed_size(layout), 0.0F);
  for (int64_t direction = 0; direction < layout.directions; ++direction) {
    const RecurrentWeights& given = weights[direction];
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      float* const bias = to + (direction * panels.count + panel) * panels.size;
      float* const of_inputs = bias + kSlots * lanes;
      float* const of_state = of_inputs + layout.inputs * width * lanes;
      for (int64_t slot = 0; slot < width; ++slot) {
        for (int64_t lane = 0; lane < lanes; ++lane) {
          // Without gates, a slot holds further units.
          const int64_t unit = panel * panels.units + (gates == 1 ? slot * lanes : 0) + lane;
          if (unit >= layout.hidden) break;
          const int64_t row = (gates == 1 ? 0 : slot * layout.hidden) + unit, at = slot * lanes + lane;
          const float input_bias = given.input_bias == nullptr ? 0.0F : given.input_bias[row];
          const float state_bias = given.state_bias == nullptr ? 0.0F : given.state_bias[row];
          const bool is_new_state = layout.cell == Cell::kGru && slot == 2;
          bias[at] = is_new_state ? input_bias : input_bias + state_bias;
          if (is_new_state) bias[at + lanes] = state_bias;
          for (int64_t k = 0; k < layout.inputs; ++k)
            of_inputs[k * width * lanes + at] = given.of_inputs[row * layout.inputs + k];
          for (int64_t k = 0; k < layout.hidden; ++k)
            of_state[k * width * lanes + at] = given.of_state[row * layout.hidden + k];
        }
      }
    }
  }
}

void run(const Recurrent& given, int num_threads) {
  const RecurrentLayout& layout = given.layout;
  const Kernels* const ours = kernels(Element::kFloat32);
  const RecurrentPanels panels(layout, ours->vector_size);
  const auto directions = static_cast<int>(layout.directions);
  const double of_step = static_cast<double>(given.batch * layout.directions * num_gates(layout.cell)) *
                         static_cast<double>(layout.hidden * layout.hidden);
  const double most = of_step / kLeastOfStep;
  int threads = most < num_threads ? static_cast<int>(most) : num_threads;
  // Directions are independent: their threads need no barrier.
  if (of_step * static_cast<double>(given.steps) > kLeastOfAll)
    threads = std::max(threads, std::min(directions, num_threads));
  threads = std::clamp(threads, 1, static_cast<int>(std::min<int64_t>(panels.count * directions, 1 << 10)));
  const int64_t most_panels = (panels.count * directions + threads - 1) / threads;
  const int64_t rows = RecurrentPanels::steps_of_chunk(given) * given.batch;
  // One panel more, for fewer threads than asked for: they share the scratch of all.
  constexpr int64_t kSlack = 16, kFloatsOfPointer = sizeof(const float*) / sizeof(float);
  const int64_t size = (most_panels + 1) * rows * kSlots * ours->vector_size + rows * kFloatsOfPointer +
                       layout.hidden + kSlack;
  const std::unique_ptr<float[]> scratch(new float[static_cast<size_t>(size * threads)]);
  in_parallel(threads, [&](int thread, int count) {
    ours->recurrent(given, thread, count, scratch.get() + size * threads * thread / count);
  });
}

}  // namespace rlopt::kernels
