// SPDX-License-Identifier: Apache-2.0
#pragma once
// arena: the memory in which the objects of a node lie. A file without a name and pages until it is
// written, which all processes of a program on that node have open.
//
//     auto here = objects::arena::create(std::uint64_t{1} << 30);      // costs nothing yet
//     {
//         auto place = here.write(0, 4096);                            // of what was granted
//         std::memcpy(place.bytes().data(), from, 4096);
//     }                                                                // cannot be written any more
//     byte_span all = here.view(0, 4096);                              // mapped to read, once
//
// A process reads all of it and writes only through windows, so that a wild write elsewhere ends the
// process that makes it and changes no object. What that does not guard: who has the file open could
// map any of it to write, on purpose; and while a window is open, all that is in its pages.
//
// It holds payload alone: who has which object is in a store_book.

#include <skein/core/bytes.hpp>
#include <skein/core/unique_fd.hpp>

#include <cstdint>
#include <memory>

namespace skein::objects {

class arena {
public:
    /// None.
    arena() noexcept = default;
    ///   errors  exhausted: no descriptors, or the system allows no such memory
    [[nodiscard]] static arena create(std::uint64_t bytes);
    /// What another process has created.
    ///   errors  malformed: it is no such memory
    [[nodiscard]] static arena open(unique_fd from);
    /// Plain memory of this process: for processes of a simulated world, which are in one. Copies
    /// share it.
    [[nodiscard]] static arena in_memory(std::uint64_t bytes);

    explicit operator bool() const noexcept { return held_ != nullptr; }
    [[nodiscard]] std::uint64_t bytes() const noexcept;
    /// For a child to inherit; -1: it has no file.
    [[nodiscard]] int fd() const noexcept;

    /// Bytes of it, to read: valid as long as a copy of this arena lives. The first call maps it.
    /// Any thread.
    ///   errors  malformed: they are not all in it; exhausted: no room to map it
    [[nodiscard]] byte_span view(std::uint64_t at, std::uint64_t bytes) const;

    /// A part of it that may be written to.
    class window {
    public:
        window() noexcept = default;
        window(window&& other) noexcept;
        window& operator=(window&& other) noexcept;
        ~window();
        [[nodiscard]] mut_byte_span bytes() const noexcept { return bytes_; }

    private:
        friend class arena;
        mut_byte_span bytes_;
        mut_byte_span mapped_; ///< empty: nothing to unmap
    };
    /// Its pages are taken at once: faults one by one cost more than writing.
    ///   errors  malformed: it is not all in it; exhausted: no room to map it
    [[nodiscard]] window write(std::uint64_t at, std::uint64_t bytes) const;

    /// What was there is gone, and the system has its pages. Whole pages only.
    void give_back(std::uint64_t at, std::uint64_t bytes) const noexcept;

    /// What a place in it begins at a multiple of.
    static constexpr std::uint64_t page = 4096;

private:
    struct memory;
    std::shared_ptr<memory> held_;
};

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/arena.ipp>
#endif
