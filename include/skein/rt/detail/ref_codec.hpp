// SPDX-License-Identifier: Apache-2.0
#pragma once
// How refs and views travel: what does not depend on the type of the value.

#include <skein/objects/object.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/object_message.hpp>
#include <skein/rt/remote_error.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <utility>
#include <vector>

namespace skein::rt::detail {

/// While it lives, refs without an outcome that are encoded on this thread are collected: the call
/// waits for them, and what was encoded is thrown away.
class pending_refs {
public:
    ///   copies  values that are objects are copied into the message: those that must be read first
    ///           are collected, too
    explicit pending_refs(bool copies = false) noexcept
        : copies_(copies), before_(std::exchange(current_, this)) {}
    pending_refs(const pending_refs&) = delete;
    pending_refs& operator=(const pending_refs&) = delete;
    ~pending_refs() { current_ = before_; }
    [[nodiscard]] static pending_refs* current() noexcept { return current_; }
    [[nodiscard]] bool copies() const noexcept { return copies_; }

    std::vector<counted_ptr<call_base>> all;

private:
    static inline constinit thread_local pending_refs* current_ = nullptr;
    bool copies_;
    pending_refs* before_;
};

/// A ref without an outcome.
///   errors  not_supported: nobody collects such
void note_pending(wire::writer& to, call_base& call);
void encode_ref_failure(wire::writer& to, const failure& why);
/// The name of the object, which then goes along. False: who reads it would not find it, nothing was
/// written.
[[nodiscard]] bool encode_object(wire::writer& to, const objects::object_ptr& object);
/// What comes before a value. False: it cannot be read.
[[nodiscard]] bool decode_ref_head(wire::reader& from, ref_tag& what, failure& why,
                                   objects::object_ptr& object);
/// The bytes of an object that came along, which were read before.
///   errors  malformed: they were not
[[nodiscard]] objects::reading_ptr bytes_of(const objects::object_ptr& object);
/// An argument is an object, which goes along. False: who runs the call would not find it.
[[nodiscard]] bool place_object(const objects::object_ptr& object, std::uint32_t place);
/// The value has views in this process, and cannot be copied.
[[noreturn]] void refuse_shared_value();

} // namespace skein::rt::detail
