// Counts the bytes that torch's CPU allocator has handed out, on every thread, and the most that were out at once.
// Built and installed by planner/launch/counting_allocator.py; a profiler misses what communication threads release.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <unordered_map>

static std::mutex lock;
static std::unordered_map<void*, int64_t> blocks;
static int64_t alive = 0;
static int64_t peak = 0;

static void drop(void* block) {
  {
    std::lock_guard<std::mutex> held(lock);
    auto at = blocks.find(block);
    if (at != blocks.end()) {
      alive -= at->second;
      blocks.erase(at);
    }
  }
  c10::free_cpu(block);
}

struct Counting final : at::Allocator {
  at::DataPtr allocate(size_t size) override {
    void* block = c10::alloc_cpu(size);
    if (block) {
      std::lock_guard<std::mutex> held(lock);
      blocks[block] = static_cast<int64_t>(size);
      alive += static_cast<int64_t>(size);
      peak = std::max(peak, alive);
    }
    return {block, block, &drop, c10::Device(c10::DeviceType::CPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, std::size_t size) const override { default_copy_data(to, from, size); }
};

extern "C" {
void install() {
  static Counting counting;
  c10::SetCPUAllocator(&counting, 255);
}
int64_t alive_bytes() {
  std::lock_guard<std::mutex> held(lock);
  return alive;
}
int64_t take_peak_bytes() {
  std::lock_guard<std::mutex> held(lock);
  int64_t seen = peak;
  peak = alive;
  return seen;
}
}
