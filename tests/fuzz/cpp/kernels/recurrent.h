// Cases of recurrent layers.
#pragma once

#include "cases.h"
#include "kernels/recurrent.h"

namespace rlopt::fuzz {

/// Computes one direction in float64. `h` and `c` are the first state, and then the last one.
inline void steps_of(const kernels::Recurrent& call, const kernels::RecurrentWeights& weights,
                     int64_t direction, int64_t row, std::vector<double>& h, std::vector<double>& c,
                     const std::vector<double*>& results) {
  using kernels::Cell;
  const kernels::RecurrentLayout& layout = call.layout;
  const int64_t hidden = layout.hidden;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (int64_t step = 0; step < call.steps; ++step) {
    const int64_t time = direction == 1 ? call.steps - 1 - step : step;
    const float* const x = call.x + time * call.x_of_step + row * call.x_of_batch;
    const std::vector<double> before = h;
    for (int64_t unit = 0; unit < hidden; ++unit) {
      double of_inputs[4] = {}, of_state[4] = {};
      for (int64_t gate = 0; gate < kernels::num_gates(layout.cell); ++gate) {
        const int64_t at = gate * hidden + unit;
        if (weights.input_bias != nullptr)
          of_inputs[gate] = weights.input_bias[at], of_state[gate] = weights.state_bias[at];
        for (int64_t k = 0; k < layout.inputs; ++k)
          of_inputs[gate] += double{x[k]} * weights.of_inputs[at * layout.inputs + k];
        for (int64_t k = 0; k < hidden; ++k)
          of_state[gate] += before[static_cast<size_t>(k)] * weights.of_state[at * hidden + k];
      }
      double& to = h[static_cast<size_t>(unit)];
      double& cell = c[static_cast<size_t>(unit)];
      const auto sum = [&](int gate) { return of_inputs[gate] + of_state[gate]; };
      if (layout.cell == Cell::kLstm) {
        cell = sigmoid(sum(1)) * cell + sigmoid(sum(0)) * std::tanh(sum(2));
        to = sigmoid(sum(3)) * std::tanh(cell);
      } else if (layout.cell == Cell::kGru) {
        const double fresh = std::tanh(of_inputs[2] + sigmoid(sum(0)) * of_state[2]);
        to = fresh + sigmoid(sum(1)) * (before[static_cast<size_t>(unit)] - fresh);
      } else {
        to = layout.cell == Cell::kTanh ? std::tanh(sum(0)) : std::max(sum(0), 0.0);
      }
      results[static_cast<size_t>(time)][unit] = to;
    }
  }
}

inline void recurrent(Case& given) {
  Draw& draw = given.draw;
  kernels::Recurrent call{};
  call.layout = {static_cast<kernels::Cell>(draw.between(0, 3)), draw.between(1, 40), draw.between(1, 70),
                 draw.between(1, 2)};
  const auto [cell, inputs, hidden, directions] = call.layout;
  call.steps = draw.between(1, 6), call.batch = draw.of({1, 1, 2, 5, 9, 17});
  const bool has_biases = draw.once_in(2), has_state = draw.once_in(2), is_batch_first = draw.once_in(2);
  given.begin("recurrent" + text_of("cell", {static_cast<int64_t>(cell)}) +
              text_of("sizes", {call.steps, call.batch, inputs, hidden, directions}) +
              text_of("biases, state, batch first", {has_biases, has_state, is_batch_first}) +
              text_of("threads", {given.num_threads}));
  const int64_t rows = kernels::num_gates(cell) * hidden, states = directions * call.batch * hidden;
  std::vector<Memory> held;
  const auto drawn = [&](int64_t count, float size) {
    held.push_back(floats(draw, count));
    for (int64_t i = 0; i < count; ++i) held.back().floats()[i] *= size;
    return held.back().floats();
  };
  const float small = 1 / std::sqrt(static_cast<float>(inputs + hidden));
  std::vector<kernels::RecurrentWeights> weights;
  for (int64_t i = 0; i < directions; ++i)
    weights.push_back({drawn(rows * inputs, small), drawn(rows * hidden, small),
                       has_biases ? drawn(rows, 1) : nullptr, has_biases ? drawn(rows, 1) : nullptr});
  call.x = drawn(call.steps * call.batch * inputs, 2);
  call.x_of_step = is_batch_first ? inputs : call.batch * inputs;
  call.x_of_batch = is_batch_first ? call.steps * inputs : inputs;
  if (has_state) call.first_h = drawn(states, 1);
  if (has_state && cell == kernels::Cell::kLstm) call.first_c = drawn(states, 1);
  float* const packed = drawn(static_cast<int64_t>(kernels::packed_size(call.layout)), 1);
  kernels::pack(weights.data(), call.layout, packed);
  call.packed = packed;
  call.y = drawn(call.steps * call.batch * directions * hidden, 1);
  call.h = drawn(states, 1);
  call.c = cell == kernels::Cell::kLstm ? drawn(states, 1) : call.h;
  kernels::run(call, given.num_threads);
  for (int64_t direction = 0; direction < directions; ++direction) {
    for (int64_t row = 0; row < call.batch; ++row) {
      const int64_t first = (direction * call.batch + row) * hidden;
      std::vector<double> h(static_cast<size_t>(hidden)), c(static_cast<size_t>(hidden));
      if (call.first_h != nullptr) std::copy_n(call.first_h + first, hidden, h.begin());
      if (call.first_c != nullptr) std::copy_n(call.first_c + first, hidden, c.begin());
      std::vector<std::vector<double>> expected(static_cast<size_t>(call.steps), h);
      std::vector<double*> results;
      for (auto& each : expected) results.push_back(each.data());
      steps_of(call, weights[static_cast<size_t>(direction)], direction, row, h, c, results);
      const auto same = [&](const char* what, float got, double value) {
        compare(got, {value, 1 + std::abs(value)}, 3e-5, Element::kFloat32, what);
      };
      for (int64_t unit = 0; unit < hidden; ++unit) {
        const auto at = static_cast<size_t>(unit);
        for (int64_t step = 0; step < call.steps; ++step)
          same("y", call.y[(step * call.batch + row) * directions * hidden + direction * hidden + unit],
               expected[static_cast<size_t>(step)][at]);
        same("h", call.h[first + unit], h[at]);
        if (cell == kernels::Cell::kLstm) same("c", call.c[first + unit], c[at]);
      }
    }
  }
}

}  // namespace rlopt::fuzz
