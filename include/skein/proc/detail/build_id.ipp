// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/build_id.hpp.

#include <skein/core/crc32c.hpp>

#include <cstring>

#include <elf.h>
#include <link.h>

namespace skein::proc {

namespace detail {

SKEIN_INLINE byte_span find_build_id(byte_span notes) noexcept {
    const auto padded = [](std::size_t n) { return (n + 3) & ~std::size_t{3}; };
    while (notes.size() >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) head;
        std::memcpy(&head, notes.data(), sizeof head);
        const std::size_t name = sizeof head, desc = name + padded(head.n_namesz);
        const std::size_t end = desc + padded(head.n_descsz);
        if (end > notes.size()) return {};
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 &&
            std::memcmp(notes.data() + name, "GNU", 4) == 0)
            return notes.subspan(desc, head.n_descsz);
        notes = notes.subspan(end);
    }
    return {};
}

SKEIN_INLINE int hash_program(dl_phdr_info* program, std::size_t, void* out) {
    std::uint32_t low = 1, high = 2;
    const auto add = [&](byte_span bytes) {
        low = crc32c(bytes, low);
        high = crc32c(bytes, high ^ 0x5bd1e995u ^ static_cast<std::uint32_t>(bytes.size()));
    };
    const auto segment = [&](const ElfW(Phdr) & h) {
        return byte_span(reinterpret_cast<const std::byte*>(program->dlpi_addr + h.p_vaddr),
                         h.p_memsz);
    };
    byte_span note;
    for (int i = 0; i < program->dlpi_phnum; ++i)
        if (program->dlpi_phdr[i].p_type == PT_NOTE && note.empty())
            note = find_build_id(segment(program->dlpi_phdr[i]));
    if (!note.empty()) {
        add(note);
    } else {
        for (int i = 0; i < program->dlpi_phnum; ++i) {
            const auto& h = program->dlpi_phdr[i];
            if (h.p_type == PT_LOAD && (h.p_flags & PF_W) == 0) add(segment(h));
        }
    }
    *static_cast<std::uint64_t*>(out) = std::uint64_t{high} << 32 | low;
    return 1; // the first entry is the program itself
}

} // namespace detail

SKEIN_INLINE std::uint64_t build_id() {
    static const std::uint64_t id = [] {
        std::uint64_t found = 0;
        ::dl_iterate_phdr(&detail::hash_program, &found);
        return found;
    }();
    return id;
}

} // namespace skein::proc
