// SPDX-License-Identifier: Apache-2.0
#pragma once
// view<T>: the value of a ref, read where it lies.
//
//     auto r = co_await skein::put(numbers);              // ref<std::vector<float>>
//     const auto v = co_await skein::view(r);
//     for (float x : *v) sum += x;                         // std::span<const float>, no byte copied
//
//     double total(skein::view<std::vector<float>> v);     // the same as a parameter
//     auto s = skein::remote<&total>(r);
//
// Of a vector of plain elements it gives a std::span, of a std::string a std::string_view, of all else
// a const T&, which is decoded once in each process, or lies over the bytes where its codec knows how
// (train/tensor_message.hpp). What it gives never changes and stays as long as a copy of the view
// lives, on whichever thread. A vector of views is the parameter for a vector of refs.

#include <skein/core/check.hpp>
#include <skein/objects/object.hpp>
#include <skein/rt/detail/ref_codec.hpp>
#include <skein/rt/detail/stored.hpp>
#include <skein/rt/ref.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <memory>
#include <type_traits>
#include <utility>

namespace skein {

/// Empty, or of a ref that may not have its value yet (that is for its loop alone, and to be awaited),
/// or there: for any thread.
template <class T>
class view {
    static_assert(rt::detail::storable<T>,
                  "skein: a view is of a value that can be an object: it can be sent, owns what it "
                  "holds, and no ref, actor_handle or placement_group is in it");

public:
    using value_type = T;
    /// std::span<const E>, std::string_view or const T&.
    using reads = typename rt::detail::read_as<T>::type;

    view() noexcept = default;
    /// To be awaited.
    explicit view(ref<T> of) noexcept : of_(std::move(of)) {}

    /// True if it is there.
    explicit operator bool() const noexcept { return object_ != nullptr || value_ != nullptr; }
    /// The value; it must be there.
    [[nodiscard]] reads operator*() const {
        SKEIN_CHECK(*this, "a skein::view is read that is empty or was not awaited");
        if constexpr (rt::detail::is_flat<T>) {
            if (object_) return rt::detail::flat_view<T>(bytes_->bytes());
            return reads(*value_);
        } else {
            return *value_;
        }
    }
    operator reads() const { return **this; } // NOLINT: reads as its value
    /// Of a value that is neither text nor a vector of plain elements.
    [[nodiscard]] const T* operator->() const
        requires(!rt::detail::is_flat<T>)
    {
        return &**this;
    }

    /// Suspends until the call of the ref is done; gives the view that is there.
    ///   errors  those of co_await ref; malformed: the object cannot be read as a T
    auto operator co_await() const {
        SKEIN_CHECK(of_,
                    "co_await of a skein::view that is empty or there already: *view reads it");
        return awaiter(of_.state());
    }

    /// What it keeps; null: the value is in the memory of this process alone.
    [[nodiscard]] const objects::object_ptr& object() const noexcept { return object_; }

    /// Of an object that is being read, or of a value of this process.
    ///   errors  malformed
    [[nodiscard]] static view of_object(objects::reading_ptr bytes) {
        view made;
        made.object_ = bytes->of();
        if constexpr (rt::detail::is_flat<T>) {
            made.bytes_ = std::move(bytes); // it stays where it is
        } else if constexpr (rt::detail::read_in_place<T>) {
            auto value = wire::codec<T>::in_place(bytes->bytes(), bytes);
            if (!value) throw value.error();
            made.value_ = std::make_shared<const T>(std::move(*value));
        } else {
            made.value_ = made.object_->template decoded<T>([&] {
                auto value = std::make_shared<T>(wire::detail::fresh<T>());
                if (auto read = rt::detail::read_stored(bytes->bytes(), *value); !read)
                    throw read.error();
                objects::count_copied_out(bytes->bytes().size());
                return std::shared_ptr<const T>(std::move(value));
            });
        }
        return made;
    }
    [[nodiscard]] static view of_value(std::shared_ptr<const T> value) noexcept {
        view made;
        made.value_ = std::move(value);
        return made;
    }

private:
    class awaiter : public rt::detail::ref_waiter<T> {
    public:
        using rt::detail::ref_waiter<T>::ref_waiter;
        view await_resume() {
            auto& ended = this->settled();
            if (ended.object()) return of_object(ended.bytes_of_object());
            return of_value(ended.share());
        }
    };

    ref<T> of_;
    objects::object_ptr object_;
    objects::reading_ptr bytes_; ///< of what is read in place
    std::shared_ptr<const T> value_;
};

template <class T>
view(ref<T>) -> view<T>;

} // namespace skein

/// As a ref of the same value.
template <class T>
struct skein::wire::codec<skein::view<T>> {
    static constexpr const char* schema = "ref";
    static void encode(writer& to, const skein::view<T>& v) {
        namespace d = skein::rt::detail;
        if (!v) return to.fixed(d::ref_tag::none);
        if (v.object() && d::encode_object(to, v.object())) return;
        to.fixed(d::ref_tag::value);
        if constexpr (d::is_flat<T>) {
            const auto all = *v;
            skein::wire::detail::encode_sequence(to, all.data(), all.size());
        } else {
            skein::wire::encode(to, *v);
        }
    }
    static skein::result<void> decode(reader& from, skein::view<T>& into) {
        namespace d = skein::rt::detail;
        d::ref_tag what{};
        skein::rt::failure why{skein::error(skein::errc::unknown, ""), nullptr};
        skein::objects::object_ptr object;
        if (!d::decode_ref_head(from, what, why, object)) return from.status();
        if (what == d::ref_tag::none) {
            into = skein::view<T>();
        } else if (what == d::ref_tag::value) {
            auto value = std::make_shared<T>(skein::wire::detail::fresh<T>());
            if (!skein::wire::detail::read(from, *value)) return from.status();
            into = skein::view<T>::of_value(std::move(value));
        } else if (what == d::ref_tag::object) {
            try {
                into = skein::view<T>::of_object(d::bytes_of(object));
            } catch (const skein::error& e) {
                return e;
            }
        } else {
            return why.what;
        }
        return {};
    }
};
