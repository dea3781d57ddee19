#include "kernels/schedule.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kernels/arena.h"
#include "kernels/bands.h"
#include "kernels/openmp.h"
#include "kernels/phases.h"

namespace rlopt::kernels {

/// Assigns work to each step and memory to each storage.
class Schedule::Placement {
 public:
  Placement(const Steps& steps, Schedule& schedule)
      : steps_(steps), schedule_(schedule), images_(images_of(steps.all)), lives_(steps.storages.size()) {}

  void run() {
    const std::vector<Phase> phases = phases_of(steps_, images_);
    for (const Phase& phase : phases)
      for (size_t i = phase.first; i < phase.last; ++i) use(i, phase);
    for (const Phase& phase : phases) add(phase);
    // Each thread's own memory follows what all threads share.
    const int64_t shared = shared_.most();
    for (Task& task : schedule_.tasks_)
      for (Place* each : {&task.in, &task.packed, &task.packed_behind, &task.other, &task.out, &task.scratch})
        if (each->of_thread > 0) {
          each->offset += shared * kFloat;
          each->of_thread = own_ * kFloat;
        }
    schedule_.arena_ = shared + own_ * schedule_.num_threads_;
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);
  struct Life {
    size_t first = 0, last = 0;           // the steps that use it
    bool is_used = false, is_own = true;  // owned by one thread, for the images of its chunk
    bool is_taken = false;
    int64_t at = 0;  // offset in the arena, or in a thread's
  };

  std::array<const Use*, 4> uses(size_t step) const {
    const Step& of = steps_.all[step];
    return {&of.in, &of.packed, &of.other, &of.out};
  }

  void use(size_t step, const Phase& phase) {
    for (const Use* each : uses(step)) {
      if (each->storage < 0) continue;
      Life& life = lives_[static_cast<size_t>(each->storage)];
      if (!life.is_used) life.first = step;
      life.is_used = true;
      life.last = step;
      life.is_own = phase.images > 0 && life.first >= phase.first;
    }
  }

  void add(const Phase& phase) {
    const bool is_shared = phase.images == 0;
    std::vector<Task>& tasks = schedule_.tasks_;
    Arena own;
    Stretch stretch{tasks.size(), tasks.size(), phase.images, is_shared ? 0 : images_ / phase.images};
    int most = static_cast<int>(std::min<int64_t>(steps_.num_threads, stretch.chunks));
    for (size_t i = phase.first; i < phase.last; ++i) {
      const Step& step = steps_.all[i];
      const bool has_next = is_shared && i + 1 < phase.last;
      if (std::optional<Task> both = has_next ? pair(i, phase, own) : std::nullopt) {
        both->waits = i > phase.first;
        most = std::max(most, both->work.num_threads);
        tasks.push_back(*both);
        ++i;
        continue;
      }
      Task task;
      task.work = is_shared ? step.work(step.given, steps_.num_threads)
                            : step.work(with_images(step.given, phase.images, images_), 1);
      task.in = place(step.in, phase, own);
      task.packed = place(step.packed, phase, own);
      task.other = place(step.other, phase, own);
      task.out = place(step.out, phase, own);
      const int threads = task.work.num_threads;
      if (task.work.scratch_of_thread > 0) {
        Arena& arena = is_shared ? shared_ : own;
        const int64_t at = arena.take(task.work.scratch_of_thread * threads);
        task.scratch = {arena_memory(), at * kFloat, 0, is_shared ? 0 : 1};
        arena.give_back(at);
      }
      // Freed only after all operands have their place: no result overwrites its operands.
      for (const Use* each : uses(i)) give_back(*each, i + 1, is_shared, own);
      task.waits = is_shared && i > phase.first && (threads > 1 || tasks.back().work.num_threads > 1);
      most = std::max(most, threads);
      tasks.push_back(task);
    }
    // Storages that all threads use are freed only now: some threads are at earlier steps than others.
    for (size_t i = phase.first; i < phase.last; ++i)
      for (const Use* each : uses(i)) give_back(*each, phase.last, true, own);
    stretch.last = tasks.size();
    schedule_.stretches_.push_back(stretch);
    schedule_.num_threads_ = std::max(schedule_.num_threads_, most);
    if (!is_shared) own_ = std::max(own_, own.most() + kLineOfArena);
  }

  /// Fuses two calls into one task if nothing else reads the intermediate and row tiles apply.
  std::optional<Task> pair(size_t first, const Phase& phase, Arena& own) {
    const Step &step = steps_.all[first], &behind = steps_.all[first + 1];
    if (images_ > 1 || step.out.storage < 0 || step.out.storage != behind.in.storage) return std::nullopt;
    const Life& between = lives_[static_cast<size_t>(step.out.storage)];
    const Storage& storage = steps_.storages[static_cast<size_t>(step.out.storage)];
    const bool is_theirs = storage.memory < 0 && between.first == first && between.last == first + 1;
    // Convolutions have packed weights; pools and pointwise operators have none.
    const bool are_convolutions = step.packed.storage >= 0 && behind.packed.storage >= 0;
    if (!is_theirs || !are_convolutions || step.other.storage >= 0 || behind.other.storage >= 0)
      return std::nullopt;
    const Bands bands = bands_of(step.given, behind.given, steps_.num_threads, steps_.bands);
    if (bands.count == 0) return std::nullopt;
    Task task;
    task.work = step.work(step.given, 1);
    task.behind = behind.work(behind.given, 1);
    const bool is_one_row = task.work.given.height == 1 && task.work.given.out_height == 1;  // for `cut`
    if (!is_one_row || task.work.scratch_of_thread > 0 || task.behind.scratch_of_thread > 0)
      return std::nullopt;
    task.work.num_threads = steps_.num_threads;  // threads that have to be present; each row tile runs in one
    task.bands = bands.count;
    task.floats_of_band = bands.floats;
    // The second result must not overlap the first input, so all are placed before any is freed.
    const int64_t at = shared_.take(bands.floats * steps_.num_threads);
    task.scratch = {arena_memory(), at * kFloat, 0, 0};
    task.in = place(step.in, phase, own);
    task.packed = place(step.packed, phase, own);
    task.packed_behind = place(behind.packed, phase, own);
    task.out = place(behind.out, phase, own);
    shared_.give_back(at);
    for (const size_t each : {first, first + 1})
      for (const Use* use : uses(each)) give_back(*use, first + 2, true, own);
    return task;
  }

  int arena_memory() const { return steps_.num_memories; }

  Place place(const Use& use, const Phase& phase, Arena& own) {
    if (use.storage < 0) return {};
    const Storage& storage = steps_.storages[static_cast<size_t>(use.storage)];
    Life& life = lives_[static_cast<size_t>(use.storage)];
    Place found{storage.memory, use.offset, 0, 0};
    if (found.memory < 0) {
      found.memory = arena_memory();
      if (!life.is_taken) {
        life.is_taken = true;
        life.at = life.is_own ? own.take((storage.size * phase.images + images_ - 1) / images_)
                              : shared_.take(storage.size);
      }
      found.offset += life.at * kFloat;
      found.of_thread = life.is_own ? 1 : 0;
    }
    if (found.of_thread == 0 && phase.images > 0 && use.count > 0)
      found.of_chunk = use.stride * (use.count / images_) * phase.images;
    return found;
  }

  /// Frees what no step from `next` on uses: this thread's, and the shared ones if no thread lags behind.
  void give_back(const Use& use, size_t next, bool are_all_there, Arena& own) {
    if (use.storage < 0) return;
    Life& life = lives_[static_cast<size_t>(use.storage)];
    if (!life.is_taken || life.last >= next || !(life.is_own || are_all_there)) return;
    (life.is_own ? own : shared_).give_back(life.at);
    life.is_taken = false;
  }

  const Steps& steps_;
  Schedule& schedule_;
  int64_t images_;
  std::vector<Life> lives_;
  Arena shared_;
  int64_t own_ = 0;  // floats per thread
};

/// The work of one thread.
class Schedule::Thread {
 public:
  /// Counters of task parts, for all threads, double-buffered: while one row is in use, nobody uses the
  /// other. Then one counter of chunks for each stretch.
  static size_t num_turns(const Schedule& schedule) {
    return 2 * static_cast<size_t>(schedule.num_threads_) + schedule.stretches_.size();
  }

  Thread(const Schedule& schedule, char* const* memory, int thread, int count, Turn* turns)
      : schedule_(schedule),
        memory_(memory),
        thread_(thread),
        count_(count),
        turns_(turns),
        others_(turns + count),
        chunks_(turns + 2 * count) {}

  void run() {
    for (const Stretch& stretch : schedule_.stretches_) {
      if (stretch.first > 0 && count_ > 1) barrier();
      if (stretch.images == 0)
        run_shared(stretch);
      else
        run_chunks(stretch);
    }
  }

 private:
  void* find(const Place& place, int64_t chunk) const {
    return place.memory < 0
               ? nullptr
               : memory_[place.memory] + place.offset + chunk * place.of_chunk + thread_ * place.of_thread;
  }

  Operands operands(const Task& task, int64_t chunk) const {
    return {find(task.in, chunk), static_cast<const float*>(find(task.packed, chunk)),
            find(task.other, chunk), find(task.out, chunk), static_cast<float*>(find(task.scratch, chunk))};
  }

  void run_shared(const Stretch& stretch) {
    for (size_t i = stretch.first; i < stretch.last; ++i) {
      const Task& task = schedule_.tasks_[i];
      if (task.waits && count_ > 1) barrier();
      const int share = std::min(count_, task.work.num_threads);
      if (task.bands > 0)
        run_bands(task);
      else if (thread_ < share)
        run_share(task.work, operands(task, 0), thread_, share, turns_);
      if (task.work.parts_of_thread == 1 && task.bands == 0) continue;
      others_[thread_].next.store(0, std::memory_order_relaxed);  // first read after the next barrier
      std::swap(turns_, others_);
    }
  }

  /// Each thread takes the next row tile that is not yet taken.
  void run_bands(const Task& task) {
    const Operands first = operands(task, 0);
    const auto* const packed = static_cast<const float*>(find(task.packed_behind, 0));
    float* const between = first.scratch + thread_ * task.floats_of_band;
    for (;;) {
      const int band = turns_->next.fetch_add(1, std::memory_order_relaxed);
      if (band >= task.bands) return;
      Work work = task.work, behind = task.behind;
      const Offsets offsets = cut(work.given, behind.given, band, task.bands);
      run_share(work, {moved(first.in, offsets.in), first.packed, nullptr, between}, 0, 1, nullptr);
      run_share(behind, {between, packed, nullptr, moved(first.out, offsets.out)}, 0, 1, nullptr);
    }
  }

  void run_chunks(const Stretch& stretch) {
    std::atomic<int>& next = chunks_[&stretch - schedule_.stretches_.data()].next;
    for (;;) {
      const int chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= stretch.chunks) return;
      for (size_t i = stretch.first; i < stretch.last; ++i) {
        const Task& task = schedule_.tasks_[i];
        run_share(task.work, operands(task, chunk), 0, 1, nullptr);
      }
    }
  }

  const Schedule& schedule_;
  char* const* memory_;
  int thread_, count_;
  Turn *turns_, *others_, *chunks_;
};

Schedule::Schedule(const Steps& steps) : outputs_(steps.outputs) { Placement(steps, *this).run(); }

bool Schedule::has_chunks() const {
  return std::any_of(stretches_.begin(), stretches_.end(),
                     [](const Stretch& each) { return each.images > 0; });
}

std::vector<int64_t> Schedule::images_at_a_time() const {
  std::vector<int64_t> images;
  for (const Stretch& each : stretches_) images.push_back(each.images);
  return images;
}

std::vector<int64_t> Schedule::bands() const {
  std::vector<int64_t> bands;
  for (const Task& each : tasks_)
    if (each.bands > 0) bands.push_back(each.bands);
  return bands;
}

void Schedule::run(char* const* memory) const {
  if (tasks_.empty()) return;
  const auto turns = std::make_unique<Turn[]>(Thread::num_turns(*this));
  in_parallel(num_threads_,
              [&](int thread, int count) { Thread(*this, memory, thread, count, turns.get()).run(); });
}

}  // namespace rlopt::kernels
