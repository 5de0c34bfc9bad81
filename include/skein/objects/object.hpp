// SPDX-License-Identifier: Apache-2.0
#pragma once
// object: bytes in the store of a node that this process holds. They never change, and stay where they
// are as long as one copy of the pointer lives, on whichever thread.

#include <skein/core/bytes.hpp>
#include <skein/core/check.hpp>
#include <skein/objects/arena.hpp>
#include <skein/objects/object_name.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <typeinfo>
#include <utility>

namespace skein::objects {

namespace detail {
struct let_go_box;
}

/// Made by a store_client alone. Dropping the last pointer to it lets the object go; any thread, also
/// after the end of the client's loop.
class object {
public:
    ///   at  in the arena; nothing: it is on another node, and was not brought here
    object(object_name name, arena memory, std::optional<std::uint64_t> at,
           std::shared_ptr<detail::let_go_box> back);
    object(const object&) = delete;
    object& operator=(const object&) = delete;
    ~object();

    [[nodiscard]] const object_name& name() const noexcept { return name_; }
    /// Its bytes are on this node: of one that is held here, unless it was adopted from another node,
    /// until store_client::bring(). The loop's thread.
    [[nodiscard]] bool is_here() const noexcept { return bytes_.data() != nullptr; }
    [[nodiscard]] byte_span bytes() const noexcept {
        SKEIN_CHECK(is_here(), "object {} is read before it is on this node", name_.number.value());
        return bytes_;
    }

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
    void settle(arena where, std::uint64_t at) {
        bytes_ = where.view(at, name_.bytes);
        memory_ = std::move(where);
    }
    object_name name_;
    arena memory_; // keeps it mapped
    byte_span bytes_;
    std::shared_ptr<detail::let_go_box> back_;
    std::uint32_t times_ = 1; ///< so often the store counts it for this process; the loop's thread

    mutable std::mutex mutex_; // of all below
    mutable std::shared_ptr<const void> decoded_;
    mutable const std::type_info* type_ = nullptr;
};

using object_ptr = std::shared_ptr<const object>;

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
