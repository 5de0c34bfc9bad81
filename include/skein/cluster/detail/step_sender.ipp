// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/step_sender.hpp.

#include <skein/cluster/detail/fetched_files.hpp>
#include <skein/cluster/detail/head_runs.hpp>
#include <skein/cluster/detail/result_files.hpp>
#include <skein/cluster/detail/result_sender.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/file_beside.hpp>
#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/offload.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// Nothing: that is no whole step.
[[nodiscard]] inline std::optional<std::uint64_t> number_of_step(std::string_view name) {
    constexpr std::string_view begin = "step-";
    if (!name.starts_with(begin)) return std::nullopt;
    const auto digits = name.substr(begin.size());
    std::uint64_t out = 0;
    if (digits.empty() || digits.size() > 18) return std::nullopt;
    for (const char c : digits) {
        if (c < '0' || c > '9') return std::nullopt;
        out = out * 10 + static_cast<std::uint64_t>(c - '0');
    }
    return out;
}

SKEIN_INLINE std::vector<found_step> find_steps(const std::string& runs) {
    posix_disk disk;
    std::vector<found_step> out;
    const auto all = disk.list(runs);
    if (!all) return out;
    std::size_t seen = 0;
    for (const auto& run : *all) {
        if (!run.is_directory || ++seen > most_watched_runs) continue;
        const auto steps = disk.list(join_path(join_path(runs, run.name), "checkpoints"));
        if (!steps) continue;
        std::vector<found_step> of_run;
        for (const auto& one : *steps)
            if (const auto number = number_of_step(one.name); number && one.is_directory)
                of_run.push_back({run.name, one.name, *number});
        std::sort(of_run.begin(), of_run.end(),
                  [](const auto& a, const auto& b) { return a.step < b.step; });
        out.insert(out.end(), of_run.begin(), of_run.end());
    }
    return out;
}

SKEIN_INLINE found_step step_of_set(const std::string& name) {
    found_step out;
    const auto slash = name.find('/');
    if (slash == name.npos) return out;
    const auto number = number_of_step(std::string_view(name).substr(slash + 1));
    if (!number) return out;
    out.run = name.substr(0, slash);
    out.folder = name.substr(slash + 1);
    out.step = *number;
    return out;
}

/// As it is now: who writes on writes behind it, or into another file.
inline void copy_run_file(const std::string& from, const std::string& to) {
    const unique_fd in(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat is{};
    if (!in || ::fstat(in.get(), &is) != 0 || !S_ISREG(is.st_mode) ||
        static_cast<std::uint64_t>(is.st_size) > most_run_file)
        return;
    byte_buffer bytes(static_cast<std::size_t>(is.st_size));
    const auto n = skein::detail::retry_eintr(
        [&] { return ::pread(in.get(), bytes.data(), bytes.size(), 0); });
    bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    file_beside out(to, is.st_mode & 0777);
    if (!out || !out.append(bytes) || !out.take_place(to)) throw errno_error(errno, "write", to);
}

SKEIN_INLINE void snap_step(const std::string& folder, const std::string& runs,
                            const found_step& step, const std::string& into) {
    const auto run = join_path(join_path(folder, runs), step.run);
    const auto to = join_path(join_path(into, runs), step.run);
    const auto inner = join_path("checkpoints", step.folder);
    posix_disk disk;
    if (auto made = disk.make_dirs(join_path(to, inner)); !made) throw error(made.error());
    const auto files = disk.list(join_path(run, inner));
    if (!files) throw error(files.error());
    for (const auto& one : *files) {
        if (one.is_directory) continue;
        const auto from = join_path(join_path(run, inner), one.name);
        if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD,
                     join_path(join_path(to, inner), one.name).c_str(), 0) != 0)
            throw errno_error(errno, "link", from);
    }
    const auto beside = disk.list(run);
    if (!beside) throw error(beside.error());
    for (const auto& one : *beside)
        if (!one.is_directory && !one.name.starts_with('.'))
            copy_run_file(join_path(run, one.name), join_path(to, one.name));
}

SKEIN_INLINE step_sender::attempt step_sender::attempt_of(const start_worker_order& order,
                                                          const job_place& place) {
    attempt out;
    const auto where = result_sender::question_of(order, place);
    if (order.entry() == nullptr || where.folder.empty() || where.runs.empty()) return out;
    out.job = order.job();
    out.folder = where.folder;
    out.runs = where.runs;
    out.beside =
        fmt::format("{}/steps/{:016x}-{}", place.storage, order.lease.driver, order.lease.number);
    out.lease = order.lease;
    out.number = order.entry()->attempt;
    return out;
}

SKEIN_INLINE task<void> step_sender::watch(const start_worker_order& order,
                                           const job_place& place) {
    return watch_each(this, attempt_of(order, place));
}
SKEIN_INLINE task<void> step_sender::bring(const start_worker_order& order,
                                           const job_place& place) {
    return bring_each(this, attempt_of(order, place));
}

/// Removed also when its task is cancelled.
struct snapped_step {
    std::string path;
    explicit snapped_step(std::string at) : path(std::move(at)) { remove(); }
    snapped_step(const snapped_step&) = delete;
    snapped_step& operator=(const snapped_step&) = delete;
    ~snapped_step() { remove(); }
    void remove() const noexcept {
        std::error_code none;
        std::filesystem::remove_all(path, none);
    }
};

SKEIN_INLINE task<void> step_sender::send_step(step_sender* self, const attempt* of,
                                               found_step step, std::vector<std::string> keeps) {
    const auto snap = std::make_shared<snapped_step>(of->beside);
    auto looking = net::offload([snap, folder = of->folder, runs = of->runs, step] {
        snap_step(folder, runs, step, snap->path);
        return find_results({snap->path, runs, {}}, nullptr, {}).files;
    });
    auto files = co_await looking;
    if (files.entries.empty()) co_return;
    head_runs<head_link> store(&self->head_, of->job, of->lease);
    store.keep_of_run(step.run, std::move(keeps));
    stored_set set;
    set.name = step.set_name();
    auto sending = send_set(&store, snap->path, std::move(files), std::move(set));
    co_await sending;
}

/// The newest first: it is what the next attempt needs.
SKEIN_INLINE task<void> step_sender::watch_each(step_sender* self, attempt of) {
    if (of.folder.empty() || self->storage_ == nullptr) co_return;
    if (!std::exchange(self->is_clean_, true)) snapped_step(parent_path(of.beside)).remove();
    for (;;) {
        co_await sleep_for(std::chrono::seconds(1));
        if (!self->head_.is_joined()) continue;
        auto looking =
            net::offload([runs = join_path(of.folder, of.runs)] { return find_steps(runs); });
        const auto there = co_await looking;
        const auto next = std::find_if(there.rbegin(), there.rend(), [&](const found_step& one) {
            return !of.sent.contains(one.set_name());
        });
        if (next == there.rend()) continue;
        std::vector<std::string> keeps;
        for (const auto& one : there)
            if (one.run == next->run) keeps.push_back(one.set_name());
        co_await self->turns_.acquire();
        auto sending = as_result(send_step(self, &of, *next, std::move(keeps)));
        const auto sent = co_await sending;
        self->turns_.release();
        const auto code = sent ? errc{} : sent.error().code();
        if (code == errc::cancelled) co_return;
        if (!sent && !self->head_.is_joined()) continue; // the next head gets it
        of.sent.insert(next->set_name());
        if (!sent && code != errc::not_found && of.told.insert(sent.error().text()).second)
            logging::warn(
                "agent", "a step of a training is not kept at the head",
                {{"job", of.job}, {"step", next->set_name()}, {"why", sent.error().text()}});
    }
}

/// One file after the other, as far as this node lacks it.
SKEIN_INLINE task<void> step_sender::bring_set(step_sender* self, const attempt* of,
                                               stored_set set) {
    head_runs<head_link> store(&self->head_, of->job, of->lease);
    auto finding = store.find(set.id);
    const auto files = co_await finding;
    const auto inside = of->runs + "/" + step_of_set(set.name).run + "/";
    auto opening = net::offload([to = of->folder] { return std::make_shared<fetched_folder>(to); });
    const auto to = co_await opening;
    for (std::uint32_t i = 0; i < files.entries.size(); ++i) {
        const auto entry = files.entries[i];
        if (!entry.path.starts_with(inside)) continue;
        auto beginning = net::offload([to, entry]() -> std::shared_ptr<fetched_file> {
            if (to->look_at(entry) == place_is::whole) return nullptr;
            return std::make_shared<fetched_file>(to->begin(entry));
        });
        const auto file = co_await beginning;
        if (file == nullptr) continue;
        while (file->bytes() < entry.size) {
            auto asking = store.read(set.id, i, file->bytes());
            auto piece = co_await asking;
            if (piece.empty())
                throw error(errc::corrupt, entry.path + " ends too early at the head");
            auto adding = net::offload([file, some = std::move(piece)] { file->append(some); });
            co_await adding;
        }
        auto ending = net::offload([file] { file->commit(); });
        co_await ending;
    }
}

SKEIN_INLINE task<void> step_sender::bring_each(step_sender* self, attempt of) {
    if (of.folder.empty() || of.number < 2) co_return;
    head_runs<head_link> store(&self->head_, of.job, of.lease);
    auto listing = as_result(store.list());
    const auto all = co_await listing;
    if (!all && all.error().code() == errc::not_supported) co_return; // it keeps none
    if (!all) throw all.error();
    std::map<std::string, std::pair<std::uint64_t, stored_set>> newest; // by run
    for (const auto& set : *all) {
        const auto step = step_of_set(set.name);
        if (step.run.empty() || set.id.empty() || !check_package_path(step.run)) continue;
        auto& best = newest[step.run];
        if (best.second.id.empty() || step.step >= best.first) best = {step.step, set};
    }
    auto looking =
        net::offload([runs = join_path(of.folder, of.runs)] { return find_steps(runs); });
    for (const auto& one : co_await looking) {
        const auto known = newest.find(one.run);
        if (known != newest.end() && one.step >= known->second.first) newest.erase(known);
    }
    for (const auto& [run, best] : newest) {
        auto bringing = as_result(bring_set(self, &of, best.second));
        const auto came = co_await bringing;
        if (!came && came.error().code() == errc::not_found) continue; // it was removed just now
        if (!came) throw came.error();
        logging::info("agent", "a step of a training has come from the head",
                      {{"job", of.job}, {"step", best.second.name}});
    }
}

} // namespace skein::cluster::detail
