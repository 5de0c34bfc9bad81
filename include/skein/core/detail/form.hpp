// SPDX-License-Identifier: Apache-2.0
#pragma once
// A program of which one part is header-only and another part compiled does not link.
//
// Each object file brings a section group of one name with the symbol of its form in it, and refers to that
// symbol. The linker keeps one group of a name: when both forms come together, the symbol of one of them is
// gone, and the error names it. (Weak and strong definitions of the same function would link without a word,
// and two copies of one static variable would be two runtimes.) ELF only; link-time optimisation may drop it.

#if defined(__ELF__)
#if defined(SKEIN_COMPILED)
#define SKEIN_FORM "skein_compiled_form__cannot_be_mixed_with_the_header_only_form_in_one_program"
#else
#define SKEIN_FORM "skein_header_only_form__cannot_be_mixed_with_the_compiled_form_in_one_program"
#endif
asm(".pushsection .rodata.skein_form,\"aG\",%progbits,skein_form,comdat\n"
    ".globl " SKEIN_FORM "\n" SKEIN_FORM ": .byte 0\n.popsection\n"
    ".pushsection .data.rel.ro.skein_form,\"aw\",%progbits\n"
    ".balign 8\n.quad " SKEIN_FORM "\n.popsection\n");
#undef SKEIN_FORM
#endif
