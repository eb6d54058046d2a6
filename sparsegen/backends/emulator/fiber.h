// Fibers: stacks of execution that are left and entered again on one OS thread, without the kernel's help.
#pragma once

#include <cstddef>
#include <span>

#if !defined(__x86_64__) && !defined(SPARSEGEN_EMULATOR_UCONTEXT)
#define SPARSEGEN_EMULATOR_UCONTEXT
#endif
#if defined(SPARSEGEN_EMULATOR_UCONTEXT)
#include <ucontext.h>
#endif

namespace sparsegen::emulator {

/// One stack of execution. A hub enters the others, which may enter one another, and some of them returns to the hub.
class Fiber {
public:
    using Entry = void (*)();

    /// The hub: the stack of the OS thread that calls `switch_to` first.
    Fiber() = default;
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    /// Makes the first `switch_to` this fiber call `entry` on `stack`; `entry` must begin with `arrive` and never
    /// return.
    void prepare(std::span<std::byte> stack, Entry entry);

    /// Leaves this fiber, the running one, for `next`; returns when some fiber switches back to this one. The first switch
    /// of all leaves the hub.
    void switch_to(Fiber& next);

    /// Completes the first switch to a fresh fiber, for the sanitizers, which learn the stack of `hub` from the first of all.
    static void arrive(Fiber& hub);

private:
#if defined(SPARSEGEN_EMULATOR_UCONTEXT)
    ucontext_t context_{};
#else
    void* stack_pointer_ = nullptr;
#endif
    const void* stack_bottom_ = nullptr;
    std::size_t stack_size_ = 0;
    void* fake_stack_ = nullptr;  // AddressSanitizer's, while the fiber is not running
};

}  // namespace sparsegen::emulator
