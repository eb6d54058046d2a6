#include "fiber.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(SPARSEGEN_EMULATOR_UCONTEXT)
// Saves the registers that a call preserves (System V ABI) on the running stack, and goes on from another one:
// void sparsegen_switch_stacks(void** saved_stack_pointer, void* next_stack_pointer)
extern "C" void sparsegen_switch_stacks(void** saved_stack_pointer, void* next_stack_pointer);
asm(R"(
.text
.hidden sparsegen_switch_stacks
.globl sparsegen_switch_stacks
.type sparsegen_switch_stacks, @function
sparsegen_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size sparsegen_switch_stacks, .-sparsegen_switch_stacks
)");
#endif

namespace sparsegen::emulator {

void Fiber::prepare(std::span<std::byte> stack, Entry entry) {
    stack_bottom_ = stack.data();
    stack_size_ = stack.size();
#if defined(SPARSEGEN_EMULATOR_UCONTEXT)
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack.data();
    context_.uc_stack.ss_size = stack.size();
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#else
    constexpr int kSavedRegisters = 6;
    const auto end = reinterpret_cast<std::uintptr_t>(stack.data() + stack.size());
    auto** top = reinterpret_cast<void**>(end & ~std::uintptr_t{15});
    *--top = nullptr;  // the return address of `entry`, 8 bytes off a multiple of 16 as after a call: none
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < kSavedRegisters; ++i) {
        *--top = nullptr;
    }
    stack_pointer_ = top;
#endif
}

// It runs twice for each lane of a warp that meets, and touches no memory but its own.
__attribute__((no_sanitize("address", "undefined"))) void Fiber::switch_to(Fiber& next) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, next.stack_bottom_, next.stack_size_);
#endif
#if defined(SPARSEGEN_EMULATOR_UCONTEXT)
    swapcontext(&context_, &next.context_);
#else
    sparsegen_switch_stacks(&stack_pointer_, next.stack_pointer_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::arrive([[maybe_unused]] Fiber& hub) {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (hub.stack_bottom_ == nullptr) {
        hub.stack_bottom_ = bottom;
        hub.stack_size_ = size;
    }
#endif
}

}  // namespace sparsegen::emulator
