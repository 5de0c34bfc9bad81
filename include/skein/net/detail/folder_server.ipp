// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of net/folder_server.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/net/detail/folder_messages.hpp>
#include <skein/net/link.hpp>
#include <skein/net/offload.hpp>
#include <skein/net/requests.hpp>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace skein::net {

namespace detail {

/// What is served, to all links alike.
struct served_folder {
    disk* files = nullptr;
    std::string folder;

    ///   errors  permission_denied
    [[nodiscard]] std::string at(const std::string& path) const {
        if (!is_far_path(path))
            throw error(errc::permission_denied, "a path out of the folder that is served")
                .with_where(folder);
        return path.empty() ? folder : join_path(folder, path);
    }
};
using served_folder_ptr = std::shared_ptr<served_folder>;

/// What a link has opened.
struct opened_files {
    std::map<std::uint64_t, std::shared_ptr<file>> all;
    std::uint64_t last = 0;
    std::size_t opening = 0; ///< and not in it yet

    ///   errors  closed
    [[nodiscard]] std::shared_ptr<file> get(std::uint64_t number) const {
        const auto found = all.find(number);
        if (found == all.end()) throw error(errc::closed, "that file is not open");
        return found->second;
    }
};
using opened_files_ptr = std::shared_ptr<opened_files>;

inline task<far_opened> open_far(served_folder_ptr on, opened_files_ptr of, far_open m) {
    if (of->all.size() + of->opening >= most_far_files)
        throw error(errc::exhausted, fmt::format("{} files are open already", most_far_files));
    struct opened {
        std::shared_ptr<file> which;
        std::uint64_t bytes = 0;
    };
    auto opening = offload([on, path = on->at(m.path), mode = m.mode] {
        opened out;
        out.which = on->files->open(path, mode).value();
        out.bytes = out.which->size().value();
        return out;
    });
    ++of->opening;
    auto trying = as_result(std::move(opening));
    auto tried = co_await trying;
    --of->opening;
    auto made = std::move(tried).value();
    far_opened out;
    out.file = ++of->last;
    out.bytes = made.bytes;
    of->all.emplace(out.file, std::move(made.which));
    co_return out;
}

inline task<far_bytes> read_far(opened_files_ptr of, far_read m) {
    auto reading = offload([from = of->get(m.file), m] {
        far_bytes out;
        out.bytes.resize(std::min<std::uint64_t>(m.bytes, most_far_bytes));
        out.bytes.resize(from->read_at(m.offset, out.bytes).value());
        return out;
    });
    co_return co_await reading;
}

inline task<far_number> write_far(opened_files_ptr of, far_write m) {
    auto writing = offload([to = of->get(m.file), what = std::move(m)] {
        (what.is_at_end ? to->append(what.bytes) : to->write_at(what.offset, what.bytes)).value();
    });
    co_await writing;
    co_return far_number();
}

/// Blocks.
[[nodiscard]] inline std::uint64_t act(file& on, const far_file_act& m, const std::string& path) {
    switch (m.what) {
    case far_act::size: return on.size().value();
    case far_act::truncate: on.truncate(m.value).value(); return 0;
    case far_act::sync: on.sync().value(); return 0;
    case far_act::close: on.close().value(); return 0;
    case far_act::try_lock: return static_cast<std::uint64_t>(on.try_lock());
    case far_act::is_at: return on.is_at(path) ? 1 : 0;
    }
    throw error(errc::malformed, "no such thing is done with files");
}

inline task<far_number> act_far(served_folder_ptr on, opened_files_ptr of, far_file_act m) {
    auto to = of->get(m.file);
    if (m.what == far_act::close) of->all.erase(m.file);
    auto acting = offload([to, m, path = on->at(m.path)] {
        far_number out;
        out.value = act(*to, m, path);
        return out;
    });
    co_return co_await acting;
}

/// Blocks.
[[nodiscard]] inline far_names do_far(disk& files, far_deed what, const std::string& path,
                                      const std::string& to) {
    far_names out;
    const auto add = [&](const dir_entry& one) {
        out.names.push_back({one.name, one.is_directory, one.bytes});
    };
    switch (what) {
    case far_deed::rename: files.rename(path, to).value(); break;
    case far_deed::sync_dir: files.sync_dir(path).value(); break;
    case far_deed::remove: files.remove(path).value(); break;
    case far_deed::make_dirs: files.make_dirs(path).value(); break;
    case far_deed::status: add(files.status(path).value()); break;
    case far_deed::free_space: add({{}, false, files.free_space(path).value()}); break;
    case far_deed::list:
        for (const auto& one : files.list(path).value()) add(one);
        break;
    }
    return out;
}

inline task<far_names> do_far_name(served_folder_ptr on, far_name_deed m) {
    auto doing = offload([on, what = m.what, path = on->at(m.path), to = on->at(m.to)] {
        return do_far(*on->files, what, path, to);
    });
    co_return co_await doing;
}

inline void offer_folder(request_service& to, const served_folder_ptr& on,
                         const opened_files_ptr& of) {
    to.on<far_open, far_opened>(
        [on, of](far_open m, const caller&) { return open_far(on, of, std::move(m)); });
    to.on<far_read, far_bytes>([of](far_read m, const caller&) { return read_far(of, m); });
    to.on<far_write, far_number>(
        [of](far_write m, const caller&) { return write_far(of, std::move(m)); });
    to.on<far_file_act, far_number>(
        [on, of](far_file_act m, const caller&) { return act_far(on, of, std::move(m)); });
    to.on<far_name_deed, far_names>(
        [on](far_name_deed m, const caller&) { return do_far_name(on, std::move(m)); });
}

} // namespace detail

struct folder_server::state {
    detail::served_folder_ptr on = std::make_shared<detail::served_folder>();
    link_endpoint door;

    state(network& via, const address& at, const token& secret)
        : door(via, at, detail::far_link(secret, "a folder"), detail::far_link_options()) {}

    static task<void> serve_one(detail::served_folder_ptr on, link::handle l) {
        const auto below = l;
        const auto service = std::make_shared<request_service>();
        const auto of = std::make_shared<detail::opened_files>();
        detail::offer_folder(*service, on, of);
        const auto way = requests::over(std::move(l), service);
        std::exception_ptr failure;
        try {
            auto ended = below->wait_closed();
            co_await ended;
        } catch (...) {
            failure = std::current_exception();
        }
        if (failure) way->abort(error(errc::aborted, "the folder is not served any more"));
        auto closing = shield(way->close());
        co_await closing;
        auto done = shield(service->close());
        co_await done;
        if (failure) std::rethrow_exception(failure);
    }
};

SKEIN_INLINE folder_server::folder_server(network& via, const address& at, const token& secret,
                                          disk& files, std::string folder)
    : state_(std::make_unique<state>(via, at, secret)) {
    state_->on->files = &files;
    state_->on->folder = std::move(folder);
}

SKEIN_INLINE folder_server::~folder_server() = default;

SKEIN_INLINE address folder_server::local() const { return state_->door.local(); }

SKEIN_INLINE task<void> folder_server::serve() {
    return state_->door.serve(
        [on = state_->on](link::handle l) { return state::serve_one(on, std::move(l)); });
}

} // namespace skein::net
