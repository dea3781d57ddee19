// Copy-on-write values.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace rlopt {

/// A copy-on-write value; the first write after a copy clones the item.
///
/// A flag, not a reference count, decides who may write in place: an item that was ever shared is never
/// written again, even after the other owners are gone. So different threads may read, write, copy and
/// destroy copies. (A count of one does not say what another thread that has just released the item may still
/// be reading.) As with any value, a single object must not be written while it is read or copied.
template <class T>
class Shared {
 public:
  Shared() = default;
  explicit Shared(T item) : item_(std::make_shared<T>(std::move(item))), is_own_(true) {}
  Shared(const Shared& other) : item_(other.item_) { other.give_up(); }
  Shared(Shared&& other) noexcept : item_(std::move(other.item_)), is_own_(other.is_own_.load(kRelaxed)) {
    other.give_up();
  }
  Shared& operator=(Shared other) noexcept {
    item_ = std::move(other.item_);
    is_own_.store(other.is_own_.load(kRelaxed), kRelaxed);
    return *this;
  }
  ~Shared() = default;

  bool has_value() const { return item_ != nullptr; }
  const T& operator*() const { return *item_; }
  const T* operator->() const { return item_.get(); }
  /// The item for this copy alone; default-constructed if there is none.
  T& writable() {
    if (!is_own_.load(kRelaxed)) {
      item_ = item_ == nullptr ? std::make_shared<T>() : std::make_shared<T>(*item_);
      is_own_.store(true, kRelaxed);
    }
    return *item_;
  }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  /// Several threads may copy one object at once, so the flag is atomic. Writes only if the value differs.
  void give_up() const {
    if (is_own_.load(kRelaxed)) is_own_.store(false, kRelaxed);
  }

  std::shared_ptr<T> item_;
  mutable std::atomic<bool> is_own_ = false;
};

/// A copy-on-write vector in chunks: a copy is O(n / 512), a write copies at most 16 items and 32 pointers.
template <class T>
class SharedVector {
 public:
  size_t size() const { return size_; }
  const T& operator[](size_t i) const { return (*(*branches_[i / kBranch])[i % kBranch / kLeaf])[i % kLeaf]; }
  void push_back(T item) {
    if (size_ % kBranch == 0) branches_.emplace_back();
    ++size_;
    set(size_ - 1, std::move(item));
  }
  void set(size_t i, T item) { writable(i) = std::move(item); }
  /// The item, for this copy alone.
  T& writable(size_t i) {
    return branches_[i / kBranch].writable()[i % kBranch / kLeaf].writable()[i % kLeaf];
  }

 private:
  static constexpr size_t kLeaf = 16;
  static constexpr size_t kBranch = 512;
  using Leaf = Shared<std::array<T, kLeaf>>;
  using Branch = Shared<std::array<Leaf, kBranch / kLeaf>>;
  std::vector<Branch> branches_;
  size_t size_ = 0;
};

}  // namespace rlopt
