// A thunk stands for one function of the driver, with whatever arguments it has. It
// enters the gate, calls the function on the caller's own stack frame, so that arguments
// on the stack stay in place, and leaves the gate. The return address waits in memory of
// the thread meanwhile (gate_enter, gate_leave).

#include "calls.h"

	.text
	.set index, 0

.macro THUNK
	endbr64
	movl $index, %eax
	jmp common
	.set index, index + 1
.endm

#define EXPORTED(name) .p2align 4; .globl name; .type name, @function; name: THUNK;
EXPORTS
#undef EXPORTED

	.p2align 4
	.globl swap_thunks
	.hidden swap_thunks
swap_thunks:
	.set first, index
	.rept 1024
	.p2align 4
	THUNK
	.endr

common:
	pushq %rdi
	pushq %rsi
	pushq %rdx
	pushq %rcx
	pushq %r8
	pushq %r9
	subq $136, %rsp
	movups %xmm0, (%rsp)
	movups %xmm1, 16(%rsp)
	movups %xmm2, 32(%rsp)
	movups %xmm3, 48(%rsp)
	movups %xmm4, 64(%rsp)
	movups %xmm5, 80(%rsp)
	movups %xmm6, 96(%rsp)
	movups %xmm7, 112(%rsp)
	movl %eax, %edi
	movq 184(%rsp), %rsi
	call swap_enter
	movq %rax, %r11
	movups (%rsp), %xmm0
	movups 16(%rsp), %xmm1
	movups 32(%rsp), %xmm2
	movups 48(%rsp), %xmm3
	movups 64(%rsp), %xmm4
	movups 80(%rsp), %xmm5
	movups 96(%rsp), %xmm6
	movups 112(%rsp), %xmm7
	addq $136, %rsp
	popq %r9
	popq %r8
	popq %rcx
	popq %rdx
	popq %rsi
	popq %rdi
	addq $8, %rsp
	call *%r11
	pushq %rax
	subq $8, %rsp
	call swap_leave
	movq %rax, %r11
	addq $8, %rsp
	popq %rax
	jmp *%r11

	.section .note.GNU-stack, "", @progbits
