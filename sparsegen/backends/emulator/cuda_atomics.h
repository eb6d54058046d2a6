// Atomic read-modify-write operations; blocks run on several OS threads.
#pragma once

#include <concepts>
#include <type_traits>

namespace sparsegen::emulator {

template <class T>
concept AtomicInteger = std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;

/// Replaces `*address` by `change(old)` and returns the old value.
template <class T, class Change>
T atomic_update(T* address, Change change) {
    T old, next;
    __atomic_load(address, &old, __ATOMIC_SEQ_CST);
    do {
        next = change(old);
    } while (!__atomic_compare_exchange(address, &old, &next, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

}  // namespace sparsegen::emulator

template <sparsegen::emulator::AtomicInteger T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
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
    return __atomic_fetch_or(address, value, __ATOMIC_SEQ_CST);
}

template <sparsegen::emulator::AtomicInteger T>
T atomicExch(T* address, std::type_identity_t<T> value) {
    return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);
}

template <sparsegen::emulator::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
