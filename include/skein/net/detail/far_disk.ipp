// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of net/far_disk.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/mounted_folder.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/detail/folder_messages.hpp>
#include <skein/net/link.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/requests.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace skein::net {

/// The link, and the thread on which it lives.
class far_disk::way {
public:
    way(const address& at, const token& secret, std::string folder)
        : folder_(std::move(folder)), io_("far-disk") {
        try {
            io_.run([&] { return dial(this, at, secret); });
        } catch (const error& why) {
            io_.run([&] { return end(this); });
            throw error(why.code(), fmt::format("the folder {} of {} cannot be reached: {}",
                                                folder_, to_string(at), why.text()))
                .with_cause(why.cause())
                .with_hint(why.hint());
        }
    }
    ~way() {
        io_.run([&] { return end(this); });
    }
    way(const way&) = delete;
    way& operator=(const way&) = delete;

    template <message Reply, message M>
    [[nodiscard]] result<Reply> ask(M what) {
        try {
            return io_.run([&] { return over_->requests->template call<Reply>(std::move(what)); });
        } catch (const error& why) {
            return why;
        }
    }

    /// Says it, and does not wait. What is lost is said by the next question.
    template <message M>
    void tell(const M& what) noexcept {
        try {
            io_.run([&]() -> task<void> {
                over_->requests->tell(what);
                co_return;
            });
        } catch (const error&) { // NOLINT: see above
        }
    }

    /// A path as the server has it.
    [[nodiscard]] result<std::string> inside(const std::string& path) const {
        const auto whole = skein::detail::absolute_path(path);
        if (whole == folder_) return std::string();
        if (whole.starts_with(folder_ + "/"))
            if (auto rest = whole.substr(folder_.size() + 1); detail::is_far_path(rest))
                return rest;
        return error(
            errc::not_supported,
            fmt::format("not supported: {} is not in {}, which is another host's", path, folder_));
    }

    [[nodiscard]] result<std::vector<detail::far_name>> deed(detail::far_deed what,
                                                             const std::string& path,
                                                             const std::string* to = nullptr) {
        detail::far_name_deed m;
        m.what = what;
        auto in = inside(path);
        if (!in) return in.error();
        m.path = std::move(*in);
        if (to != nullptr) {
            auto other = inside(*to);
            if (!other) return other.error();
            m.to = std::move(*other);
        }
        auto said = ask<detail::far_names>(std::move(m));
        if (!said) return said.error();
        return std::move(said->names);
    }

private:
    /// What lives on the thread.
    struct on_thread {
        explicit on_thread(real_loop& on) : network(on) {}
        real_network network;
        net::requests::handle requests;
    };

    static task<void> dial(way* self, address at, token secret) {
        self->over_ = std::make_unique<on_thread>(self->io_.loop());
        auto how = detail::far_link_options();
        how.first = {}; // its server may be busy
        auto dialing =
            with_timeout(link::connect(self->over_->network, std::move(at),
                                       detail::far_link(secret, "whoever writes there"), how),
                         time_constants::lan().rendezvous_timeout);
        auto linked = co_await dialing;
        self->over_->requests = net::requests::over(std::move(linked));
    }
    static task<void> end(way* self) {
        if (self->over_ == nullptr) co_return;
        if (const auto requests = std::exchange(self->over_->requests, nullptr)) {
            auto closing = shield(requests->close());
            co_await closing;
        }
        self->over_.reset();
    }

    const std::string folder_;
    loop_thread io_;
    std::unique_ptr<on_thread> over_; // of that thread
};

/// A file that is open there.
class far_disk::far_file final : public file {
public:
    far_file(std::shared_ptr<way> over, const detail::far_opened& opened)
        : way_(std::move(over)), number_(opened.file), bytes_(opened.bytes) {}
    /// Who wants to know whether that works has called close(); a lock is free when this returns.
    ~far_file() override {
        if (is_locked_) (void)close();
        if (is_closed_) return;
        detail::far_file_act m;
        m.file = number_;
        m.what = detail::far_act::close;
        way_->tell(m);
    }

    result<std::size_t> read_at(std::uint64_t offset, mut_byte_span into) override {
        std::size_t got = 0;
        while (got < into.size()) {
            detail::far_read m;
            m.file = number_;
            m.offset = offset + got;
            m.bytes = std::min(into.size() - got, detail::most_far_bytes);
            const auto wanted = m.bytes;
            const auto piece = way_->ask<detail::far_bytes>(m);
            if (!piece) return piece.error();
            if (piece->bytes.size() > wanted)
                return error(errc::malformed, "more bytes have come than were asked for");
            std::copy(piece->bytes.begin(), piece->bytes.end(),
                      into.begin() + static_cast<std::ptrdiff_t>(got));
            got += piece->bytes.size();
            if (piece->bytes.size() < wanted) break;
        }
        return got;
    }
    result<void> write_at(std::uint64_t offset, byte_span bytes) override {
        return write(offset, bytes, false);
    }
    result<void> append(byte_span bytes) override { return write(0, bytes, true); }
    result<std::uint64_t> size() override {
        if (const auto known = std::exchange(bytes_, std::nullopt)) return *known;
        return act(detail::far_act::size);
    }
    result<void> truncate(std::uint64_t bytes) override {
        return done(act(detail::far_act::truncate, bytes));
    }
    result<void> sync() override { return done(act(detail::far_act::sync)); }
    result<void> close() override {
        if (std::exchange(is_closed_, true)) return {};
        return done(act(detail::far_act::close));
    }
    file_lock try_lock() override {
        const auto said = act(detail::far_act::try_lock);
        const auto outcome = said ? static_cast<file_lock>(*said) : file_lock::unsupported;
        is_locked_ = is_locked_ || outcome == file_lock::held;
        return outcome;
    }
    bool is_at(const std::string& path) override {
        const auto in = way_->inside(path);
        if (!in) return false;
        const auto said = act(detail::far_act::is_at, 0, *in);
        return said && *said == 1;
    }

private:
    [[nodiscard]] result<std::uint64_t> act(detail::far_act what, std::uint64_t value = 0,
                                            std::string path = {}) {
        bytes_.reset();
        detail::far_file_act m;
        m.file = number_;
        m.what = what;
        m.value = value;
        m.path = std::move(path);
        const auto said = way_->ask<detail::far_number>(std::move(m));
        if (!said) return said.error();
        return said->value;
    }
    [[nodiscard]] static result<void> done(const result<std::uint64_t>& said) {
        return said ? result<void>() : result<void>(said.error());
    }
    [[nodiscard]] result<void> write(std::uint64_t offset, byte_span bytes, bool is_at_end) {
        bytes_.reset();
        while (!bytes.empty()) {
            const auto piece = bytes.first(std::min(bytes.size(), detail::most_far_bytes));
            detail::far_write m;
            m.file = number_;
            m.offset = offset;
            m.is_at_end = is_at_end;
            m.bytes = to_buffer(piece);
            if (const auto said = way_->ask<detail::far_number>(std::move(m)); !said)
                return said.error();
            offset += piece.size();
            bytes = bytes.subspan(piece.size());
        }
        return {};
    }

    std::shared_ptr<way> way_;
    std::uint64_t number_;
    std::optional<std::uint64_t> bytes_; // as it was opened, until something else is done
    bool is_closed_ = false, is_locked_ = false;
};

SKEIN_INLINE far_disk::far_disk(const address& at, const token& secret, std::string folder)
    : way_(std::make_shared<way>(at, secret, std::move(folder))) {}

SKEIN_INLINE far_disk::~far_disk() = default;

SKEIN_INLINE result<std::unique_ptr<file>> far_disk::open(const std::string& path, open_mode mode) {
    auto in = way_->inside(path);
    if (!in) return in.error();
    detail::far_open m;
    m.path = std::move(*in);
    m.mode = mode;
    const auto opened = way_->ask<detail::far_opened>(std::move(m));
    if (!opened) return opened.error();
    return std::unique_ptr<file>(std::make_unique<far_file>(way_, *opened));
}

SKEIN_INLINE result<void> far_disk::rename(const std::string& from, const std::string& to) {
    const auto said = way_->deed(detail::far_deed::rename, from, &to);
    return said ? result<void>() : result<void>(said.error());
}

SKEIN_INLINE result<void> far_disk::sync_dir(const std::string& path) {
    const auto said = way_->deed(detail::far_deed::sync_dir, path);
    return said ? result<void>() : result<void>(said.error());
}

SKEIN_INLINE result<std::vector<dir_entry>> far_disk::list(const std::string& path) {
    auto said = way_->deed(detail::far_deed::list, path);
    if (!said) return said.error();
    std::vector<dir_entry> out;
    for (auto& one : *said) out.push_back({std::move(one.name), one.is_directory, one.bytes});
    return out;
}

SKEIN_INLINE result<void> far_disk::remove(const std::string& path) {
    const auto said = way_->deed(detail::far_deed::remove, path);
    return said ? result<void>() : result<void>(said.error());
}

SKEIN_INLINE result<void> far_disk::make_dirs(const std::string& path) {
    const auto said = way_->deed(detail::far_deed::make_dirs, path);
    return said ? result<void>() : result<void>(said.error());
}

SKEIN_INLINE result<std::uint64_t> far_disk::free_space(const std::string& path) {
    const auto said = way_->deed(detail::far_deed::free_space, path);
    if (!said) return said.error();
    if (said->empty()) return error(errc::malformed, "an answer without a number");
    return said->front().bytes;
}

SKEIN_INLINE result<dir_entry> far_disk::status(const std::string& path) {
    auto said = way_->deed(detail::far_deed::status, path);
    if (!said) return said.error();
    if (said->empty()) return error(errc::malformed, "an answer without a name");
    auto& one = said->front();
    return dir_entry{std::move(one.name), one.is_directory, one.bytes};
}

} // namespace skein::net
