// SPDX-License-Identifier: Apache-2.0
#pragma once
// object: bytes in the store of a node that this process holds. They never change. Where they are, and
// whether they are in memory or in a file, is the business of the store until they are read: then they
// stay where they are as long as one copy of the reading lives, on whichever thread.
//
//     auto reading = objects::read(o);                      // what is in a file comes back first
//     const objects::reading_ptr bytes = co_await reading;
//     use(bytes->bytes());

#include <skein/core/bytes.hpp>
#include <skein/core/check.hpp>
#include <skein/core/function.hpp>
#include <skein/core/result.hpp>
#include <skein/core/task.hpp>
#include <skein/objects/arena.hpp>
#include <skein/objects/object_name.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <typeinfo>
#include <utility>

namespace skein::objects {

class store_client;

namespace detail {
struct let_go_box;
}

class object;
using object_ptr = std::shared_ptr<const object>;

/// An object that is being read. Made by a store_client alone. Any thread, also after the end of the
/// client's loop.
class reading {
public:
    reading(object_ptr of, byte_span bytes, arena own, std::uint32_t times);
    reading(const reading&) = delete;
    reading& operator=(const reading&) = delete;
    ~reading();

    [[nodiscard]] const object_ptr& of() const noexcept { return of_; }
    [[nodiscard]] byte_span bytes() const noexcept { return bytes_; }

private:
    friend class store_client;
    object_ptr of_; // keeps the memory mapped
    byte_span bytes_;
    arena own_;           ///< of this process alone: there was no room in the store
    std::uint32_t times_; ///< so often the store has it pinned for this process; the loop's thread
};
using reading_ptr = std::shared_ptr<const reading>;

/// Made by a store_client alone. Dropping the last pointer to it lets the object go; any thread, also
/// after the end of the client's loop.
class object {
public:
    ///   at     in the arena; nothing: it is on another node, and was not brought here
    ///   times  so often the store counts it for this process
    object(object_name name, arena memory, std::optional<std::uint64_t> at,
           std::shared_ptr<detail::let_go_box> back, std::uint32_t times = 1);
    object(const object&) = delete;
    object& operator=(const object&) = delete;
    ~object();

    [[nodiscard]] const object_name& name() const noexcept { return name_; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return name_.bytes; }
    /// This node has its bytes, in memory or in a file: of one that is held here, unless it was adopted
    /// from another node, until store_client::bring(). The loop's thread.
    [[nodiscard]] bool is_here() const noexcept { return here_.data() != nullptr; }
    /// Its bytes came in a message, and no store counts it for this process: others get them the same
    /// way. The loop's thread.
    [[nodiscard]] bool is_own_copy() const noexcept { return times_ == 0; }

    /// What the bytes are as a value: made by the first who asks, shared by all of this process.
    ///   make  gives a std::shared_ptr<const T>
    ///   thread any
    template <class T, class F>
    [[nodiscard]] std::shared_ptr<const T> decoded(F make) const {
        const std::lock_guard lock(mutex_);
        if (decoded_ == nullptr || *type_ != typeid(T)) {
            decoded_ = make();
            type_ = &typeid(T);
        }
        return std::static_pointer_cast<const T>(decoded_);
    }

private:
    friend class store_client;
    friend object_ptr adopt_value(store_client& by, const object_name& name, byte_span bytes);
    friend class reading;
    friend reading_ptr read_now(const object_ptr& which);
    friend task<reading_ptr> read(object_ptr which);
    friend void read_then(object_ptr which, unique_function<void(result<reading_ptr>)> then);
    void settle(arena where, std::uint64_t at) {
        here_ = where.view(at, name_.bytes);
        memory_ = std::move(where);
    }
    object_name name_;
    arena memory_;   // keeps it mapped
    byte_span here_; ///< where it was when it was named, or brought: it may be away since
    std::shared_ptr<detail::let_go_box> back_;
    std::uint32_t times_; ///< so often the store counts it for this process; the loop's thread
    mutable std::weak_ptr<reading> read_; ///< the loop's thread

    mutable std::mutex mutex_; // of all below
    mutable std::shared_ptr<const void> decoded_;
    mutable const std::type_info* type_ = nullptr;
};

/// What is pinned already, or need not be; null: read() asks the store. The loop's thread.
[[nodiscard]] reading_ptr read_now(const object_ptr& which);
/// Suspends until it can be read; on the loop of its client.
///   errors  io, corrupt: it is in a file that cannot be read; those of the link; closed: the client
///           has ended; cancelled
[[nodiscard]] task<reading_ptr> read(object_ptr which);

/// The same for somebody who is called when that is over: perhaps at once.
void read_then(object_ptr which, unique_function<void(result<reading_ptr>)> then);

/// Bytes that this process has copied into objects and out of them, since its start.
struct copied_bytes {
    std::uint64_t in = 0, out = 0;
};
[[nodiscard]] copied_bytes copied() noexcept;
void count_copied_in(std::uint64_t bytes) noexcept;
void count_copied_out(std::uint64_t bytes) noexcept;

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/object.ipp>
#endif
