// SPDX-License-Identifier: Apache-2.0
#pragma once
// Coroutine frames come from per-thread free lists by size class: about 5 ns instead of a malloc.
//
// A frame that another thread gives back goes to the heap: each list holds its own thread's frames
// alone. (Where lists took what came, a thread that only ended the coroutines of another one kept a
// thousand frames of each size, each of them a small block in the middle of what the other one had
// freed around it, and a process whose large blocks come and go grew with every step.) Each list is
// bounded. SKEIN_FRAME_POOL (core/config.hpp) turns the pool off, as AddressSanitizer does.

#include <skein/core/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace skein::detail {

/// The free frames of one thread, in classes of 32 bytes up to 2 KiB.
class frame_pool {
public:
    static void* allocate(std::size_t bytes) {
        const std::size_t size_class = class_of(bytes);
        if (!SKEIN_FRAME_POOL || size_class >= classes) return ::operator new(bytes);
        if (auto* frame = lists_[size_class]) {
            lists_[size_class] = frame->next;
            --kept_[size_class];
            return frame; // its owner is still written
        }
        void* const made = ::operator new((size_class + 1) * granularity);
        write_owner(made, size_class, closed_ ? nullptr : &lists_);
        return made;
    }
    static void release(void* p, std::size_t bytes) noexcept {
        const std::size_t size_class = class_of(bytes);
        if (SKEIN_FRAME_POOL && size_class < classes && owner_of(p, size_class) == &lists_ &&
            !closed_ && kept_[size_class] < most_kept) {
            if (kept_[size_class]++ == 0) arm();
            auto* frame = static_cast<free_frame*>(p);
            frame->next = lists_[size_class];
            lists_[size_class] = frame;
            return;
        }
        ::operator delete(p);
    }

    /// How many free frames of a class a thread keeps at most; further ones go back to the heap.
    static constexpr std::uint32_t most_kept = 1024;
    /// Free frames of this size that the calling thread keeps.
    [[nodiscard]] static std::size_t kept(std::size_t bytes) noexcept {
        return kept_[class_of(bytes)];
    }

private:
    struct free_frame {
        free_frame* next;
    };
    static constexpr std::size_t granularity = 32;
    static constexpr std::size_t classes = 64;
    /// The owner stands behind the frame, in the last bytes of its block.
    static constexpr std::size_t class_of(std::size_t bytes) noexcept {
        return (bytes + sizeof(void*) - 1) / granularity;
    }
    static char* place_of_owner(void* frame, std::size_t size_class) noexcept {
        return static_cast<char*>(frame) + (size_class + 1) * granularity - sizeof(void*);
    }
    static void write_owner(void* frame, std::size_t size_class, const void* owner) noexcept {
        std::memcpy(place_of_owner(frame, size_class), &owner, sizeof owner);
    }
    /// The lists of the thread that made it. One that has ended may have left its address to a new
    /// thread, which then keeps the frame as if it were its own.
    static const void* owner_of(void* frame, std::size_t size_class) noexcept {
        const void* owner = nullptr;
        std::memcpy(&owner, place_of_owner(frame, size_class), sizeof owner);
        return owner;
    }

    /// Frees this thread's lists when the thread ends.
    struct closer {
        ~closer() {
            closed_ = true;
            for (auto*& list : lists_) {
                while (list != nullptr) {
                    auto* next = list->next;
                    ::operator delete(static_cast<void*>(list));
                    list = next;
                }
            }
        }
    };
    static void arm() {
        static thread_local closer at_thread_end;
        (void)at_thread_end;
    }

    static inline constinit thread_local std::array<free_frame*, classes> lists_{};
    static inline constinit thread_local std::array<std::uint32_t, classes> kept_{};
    static inline constinit thread_local bool closed_ = false;
};

} // namespace skein::detail
