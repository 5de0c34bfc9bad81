// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/object.hpp.

#include <skein/core/metric_registry.hpp>
#include <skein/objects/detail/let_go_box.hpp>

#include <utility>

namespace skein::objects {

SKEIN_INLINE object::object(object_name name, arena memory, std::optional<std::uint64_t> at,
                            std::shared_ptr<detail::let_go_box> back, std::uint32_t times)
    : name_(name), memory_(std::move(memory)), back_(std::move(back)), times_(times) {
    if (at) settle(memory_, *at); // a name that cannot be is refused now
}
SKEIN_INLINE object::~object() {
    if (back_ && times_ != 0) back_->put({name_.store, name_.number, times_, 0});
}

SKEIN_INLINE reading::reading(object_ptr of, byte_span bytes, arena own, std::uint32_t times)
    : of_(std::move(of)), bytes_(bytes), own_(std::move(own)), times_(times) {}
SKEIN_INLINE reading::~reading() {
    if (times_ != 0 && of_->back_)
        of_->back_->put({of_->name().store, of_->name().number, 0, times_});
}

namespace detail {

[[nodiscard]] SKEIN_INLINE metric_counter& copied_counter(bool out) {
    static constexpr const char* name = "skein_store_copied_bytes_total";
    static constexpr const char* help = "Bytes copied into objects, and out of them.";
    static auto& in_ = metric_registry::process().counter(name, help, {{"way", "in"}});
    static auto& out_ = metric_registry::process().counter(name, help, {{"way", "out"}});
    return out ? out_ : in_;
}

} // namespace detail

SKEIN_INLINE void count_copied_in(std::uint64_t bytes) noexcept {
    detail::copied_counter(false).add(bytes);
}
SKEIN_INLINE void count_copied_out(std::uint64_t bytes) noexcept {
    detail::copied_counter(true).add(bytes);
}
SKEIN_INLINE copied_bytes copied() noexcept {
    return {detail::copied_counter(false).value(), detail::copied_counter(true).value()};
}

} // namespace skein::objects
