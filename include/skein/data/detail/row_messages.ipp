// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/row_messages.hpp>.

namespace skein::data::detail {

SKEIN_INLINE bool row_program::finish(wire::reader&, std::uint64_t, std::uint64_t, std::uint64_t,
                                      cells&) const {
    throw error(errc::not_supported, "not supported: helpers of a pipeline without on()");
}

SKEIN_INLINE task<std::unique_ptr<row_helper>> row_program::make_helper() const {
    throw error(errc::not_supported, "not supported: helpers of a pipeline without on()");
    co_return nullptr;
}

} // namespace skein::data::detail
