// Atomic read-modify-write operations; blocks run on several OS threads.
#pragma once

#include <atomic>
#include <concepts>
#include <type_traits>

namespace sparsegen::emulator {

template <class T>
concept AtomicInteger = std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;

/// Replaces `*address` by `change(old)` and returns the old value.
template <class T, class Change>
T atomic_update(T* address, Change change) {
    std::atomic_ref<T> cell(*address);
    T old = cell.load();
    while (!cell.compare_exchange_weak(old, change(old))) {
    }
    return old;
}

}  // namespace sparsegen::emulator

template <sparsegen::emulator::AtomicInteger T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(*address).fetch_add(value);
}

inline float atomicAdd(float* address, float value) {
    return sparsegen::emulator::atomic_update(address, [value](float old) { return old + value; });
}

template <sparsegen::emulator::AtomicInteger T>
T atomicMax(T* address, std::type_identity_t<T> value) {
    return sparsegen::emulator::atomic_update(address, [value](T old) { return old > value ? old : value; });
}

template <sparsegen::emulator::AtomicInteger T>
T atomicMin(T* address, std::type_identity_t<T> value) {
    return sparsegen::emulator::atomic_update(address, [value](T old) { return old < value ? old : value; });
}

template <sparsegen::emulator::AtomicInteger T>
T atomicOr(T* address, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(*address).fetch_or(value);
}

template <sparsegen::emulator::AtomicInteger T>
T atomicExch(T* address, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(*address).exchange(value);
}

template <sparsegen::emulator::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    std::atomic_ref<T>(*address).compare_exchange_strong(expected, value);
    return expected;
}

inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
