// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/step_sender.hpp.

#include <skein/cluster/detail/fetch_file.hpp>
#include <skein/cluster/detail/fetched_files.hpp>
#include <skein/cluster/detail/head_runs.hpp>
#include <skein/cluster/detail/result_files.hpp>
#include <skein/cluster/detail/result_sender.hpp>
#include <skein/cluster/detail/source_file.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/file_beside.hpp>
#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/offload.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include <dirent.h>
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

/// A name in a folder. Links are no folders.
struct name_there {
    std::string name;
    bool is_folder = false;
    std::int64_t when = 0; ///< of its last change, in nanoseconds
};

///   errors  io
[[nodiscard]] inline std::vector<name_there> names_there(int in, const std::string& shown) {
    unique_fd again(::openat(in, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto close = [](DIR* d) { ::closedir(d); };
    const std::unique_ptr<DIR, decltype(close)> dir(again ? ::fdopendir(again.get()) : nullptr,
                                                    close);
    if (!dir) throw errno_error(errno, "list", shown);
    (void)again.release();
    std::vector<name_there> out;
    while (const dirent* const each = ::readdir(dir.get())) {
        const std::string name = each->d_name;
        struct stat is{};
        if (name == "." || name == ".." ||
            ::fstatat(in, name.c_str(), &is, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        out.push_back({name, S_ISDIR(is.st_mode),
                       std::int64_t{is.st_mtim.tv_sec} * 1'000'000'000 + is.st_mtim.tv_nsec});
    }
    return out;
}

/// A folder below another one, by names of which none is a link; nothing, with errno.
[[nodiscard]] inline unique_fd folder_below(const unique_fd& in, const std::string& path) {
    return in ? open_below(in.get(), path, O_RDONLY | O_DIRECTORY) : unique_fd();
}
[[nodiscard]] inline unique_fd folder_at(const std::string& path) {
    return unique_fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

/// The folders for steps in an open folder for runs, the one that has changed last at first.
struct run_there {
    std::string run;
    std::int64_t when = 0;
};
[[nodiscard]] inline std::vector<run_there> runs_there(const unique_fd& in, const std::string& runs,
                                                       std::string& left_out) {
    std::vector<run_there> out;
    for (const auto& each : names_there(in.get(), runs)) {
        const auto path = each.name + "/checkpoints";
        struct stat is{};
        if (!each.is_folder) {
            if (::fstatat(in.get(), path.c_str(), &is, 0) == 0)
                left_out = fmt::format("{}/{} is a link", runs, each.name);
            continue;
        }
        const auto steps = folder_below(in, path);
        if (!steps && (errno == ELOOP || errno == ENOTDIR))
            left_out = fmt::format("{}/{} is a link or no folder", runs, path);
        if (!steps || ::fstat(steps.get(), &is) != 0) continue;
        out.push_back(
            {each.name, std::int64_t{is.st_mtim.tv_sec} * 1'000'000'000 + is.st_mtim.tv_nsec});
    }
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
        return std::tie(b.when, b.run) < std::tie(a.when, a.run);
    });
    return out;
}

SKEIN_INLINE steps_there find_steps(const std::string& folder, const std::string& runs,
                                    std::size_t most) {
    steps_there out;
    const auto in = folder_below(folder_at(folder), runs);
    if (!in) {
        if (errno == ELOOP || errno == ENOTDIR) out.left_out = runs + " is a link or no folder";
        return out;
    }
    auto all = runs_there(in, runs, out.left_out);
    if (all.size() > most) {
        out.left_out = fmt::format("only the {} newest of {} runs are looked at", most, all.size());
        all.resize(most);
    }
    for (const auto& each : all) {
        std::vector<found_step> of_run;
        const auto steps = folder_below(in, each.run + "/checkpoints");
        if (!steps) continue; // it has gone meanwhile
        for (const auto& one : names_there(steps.get(), runs + "/" + each.run))
            if (const auto number = number_of_step(one.name); number && one.is_folder)
                of_run.push_back({each.run, one.name, *number, one.when});
        std::sort(of_run.begin(), of_run.end(),
                  [](const auto& a, const auto& b) { return a.step < b.step; });
        if (!of_run.empty()) of_run.back().is_newest = true;
        out.steps.insert(out.steps.end(), of_run.begin(), of_run.end());
    }
    std::sort(out.steps.begin(), out.steps.end(), [](const auto& a, const auto& b) {
        return std::tie(a.is_newest, a.when, a.step, a.run) <
               std::tie(b.is_newest, b.when, b.step, b.run);
    });
    return out;
}

SKEIN_INLINE std::string part_of_step(const std::string& name, const std::string& id) {
    return fmt::format("{}.part-{}", name, to_hex(sha256_of(as_bytes(id))).substr(0, 16));
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
inline void copy_run_file(const unique_fd& folder, const std::string& name, const std::string& to) {
    const unique_fd in(
        ::openat(folder.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
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
    const auto shown = join_path(join_path(folder, runs), step.run);
    const auto to = join_path(join_path(into, runs), step.run);
    const auto inner = join_path("checkpoints", step.folder);
    posix_disk disk;
    if (auto made = disk.make_dirs(join_path(to, inner)); !made) throw error(made.error());
    const auto run = folder_below(folder_at(folder), join_path(runs, step.run));
    if (!run) throw errno_error(errno, "open", shown);
    const auto files = folder_below(run, inner);
    if (!files) throw errno_error(errno, "open", join_path(shown, inner));
    for (const auto& one : names_there(files.get(), shown)) {
        if (one.is_folder) continue;
        if (::linkat(files.get(), one.name.c_str(), AT_FDCWD,
                     join_path(join_path(to, inner), one.name).c_str(), 0) != 0)
            throw errno_error(errno, "link", join_path(join_path(shown, inner), one.name));
    }
    for (const auto& one : names_there(run.get(), shown))
        if (!one.is_folder && !one.name.starts_with('.'))
            copy_run_file(run, one.name, join_path(to, one.name));
}

SKEIN_INLINE package_manifest step_in_part(package_manifest files, const coming_step& step) {
    const auto from = step.inside + "/" + step.name + "/", to = step.inside + "/" + step.part + "/";
    for (auto& one : files.entries)
        if (one.path.starts_with(from)) one.path = to + one.path.substr(from.size());
    return files;
}

/// What of it is in its part is whole.
SKEIN_INLINE void place_step(const std::string& folder, const coming_step& step,
                             const package_manifest& files) {
    const auto shown = join_path(join_path(folder, step.inside), step.name);
    const auto in = folder_below(folder_at(folder), step.inside);
    const auto part = folder_below(in, step.part);
    if (!part) throw errno_error(errno, "open", join_path(shown, step.part));
    const auto prefix = step.inside + "/" + step.part + "/";
    for (const auto& one : files.entries) {
        if (!one.path.starts_with(prefix)) continue;
        const auto name = one.path.substr(prefix.size());
        const auto file = open_below(part.get(), name, O_RDONLY | O_NONBLOCK);
        if (!file || ::fsync(file.get()) != 0) throw errno_error(errno, "sync", shown);
    }
    if (::fsync(part.get()) != 0) throw errno_error(errno, "sync", shown);
    if (::renameat(in.get(), step.part.c_str(), in.get(), step.name.c_str()) != 0) {
        if (errno == ENOTDIR || errno == ENOTEMPTY || errno == EEXIST)
            throw error(errc::already_exists,
                        fmt::format("{} is in the way of a step from the head", shown));
        throw errno_error(errno, "make", shown);
    }
    if (::fsync(in.get()) != 0) throw errno_error(errno, "sync", shown);
}

SKEIN_INLINE void drop_part(const std::string& folder, const coming_step& step) noexcept {
    std::error_code none;
    const auto in = folder_below(folder_at(folder), step.inside);
    if (!in) return;
    std::filesystem::remove_all(fmt::format("/proc/self/fd/{}/{}", in.get(), step.part), none);
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

/// Of the runs the one whose turn was longest ago, of that the newest: it is what the next attempt
/// needs. Nothing: all are sent.
SKEIN_INLINE const found_step* step_sender::next_of(const attempt& of, const steps_there& there) {
    const found_step* best = nullptr;
    std::uint64_t turn = 0;
    for (auto one = there.steps.rbegin(); one != there.steps.rend(); ++one) {
        if (of.sent.contains(one->set_name())) continue;
        if (best != nullptr && best->is_newest && !one->is_newest) break;
        const auto last = of.turns.find(one->run);
        const auto mine = last == of.turns.end() ? 0 : last->second;
        if (best == nullptr || mine < turn) {
            best = &*one;
            turn = mine;
        }
    }
    return best;
}

/// What is there from before and at the head needs not be sent: it has come from it, or has been
/// sent by the attempt before.
SKEIN_INLINE task<bool> step_sender::learn_sent(step_sender* self, attempt* of,
                                                std::vector<std::string> there) {
    head_runs<head_link> store(&self->head_, of->job, of->lease);
    auto listing = as_result(store.list());
    const auto all = co_await listing;
    if (!all && all.error().code() == errc::cancelled) throw all.error();
    if (!all) co_return self->head_.is_joined(); // else the next head says it
    for (const auto& set : *all)
        if (!set.id.empty() && std::find(there.begin(), there.end(), set.name) != there.end())
            of->sent.insert(set.name);
    co_return true;
}

SKEIN_INLINE void step_sender::say_left_out(attempt& of, const std::string& why) {
    if (!why.empty() && of.told.insert(why).second)
        logging::warn("agent", "steps of a training are not kept at the head",
                      {{"job", of.job}, {"why", why}});
}

/// What is said once: how much room others have is another number each time.
[[nodiscard]] inline std::string trouble_of(const error& why) {
    return why.code() == errc::exhausted ? "no room" : why.text();
}

SKEIN_INLINE task<void> step_sender::watch_each(step_sender* self, attempt of) {
    if (of.folder.empty() || self->storage_ == nullptr) co_return;
    if (!std::exchange(self->is_clean_, true)) snapped_step(parent_path(of.beside)).remove();
    for (bool knows_sent = of.number < 2;;) {
        co_await sleep_for(std::chrono::seconds(1));
        if (!self->head_.is_joined()) continue;
        auto looking = as_result(net::offload([folder = of.folder, runs = of.runs] {
            return find_steps(folder, runs, most_watched_runs);
        }));
        const auto found = co_await looking;
        if (!found && found.error().code() == errc::cancelled) co_return;
        say_left_out(of, found ? found->left_out : found.error().text());
        if (!found) continue;
        if (!knows_sent) {
            std::vector<std::string> names;
            for (const auto& one : found->steps) names.push_back(one.set_name());
            auto learning = learn_sent(self, &of, std::move(names));
            knows_sent = co_await learning;
            if (!knows_sent) continue;
        }
        const auto* const next = next_of(of, *found);
        if (next == nullptr) continue;
        std::vector<std::string> keeps;
        for (const auto& one : found->steps)
            if (one.run == next->run) keeps.push_back(one.set_name());
        co_await self->turns_.acquire();
        auto sending = as_result(send_step(self, &of, *next, std::move(keeps)));
        const auto sent = co_await sending;
        self->turns_.release();
        const auto code = sent ? errc{} : sent.error().code();
        if (code == errc::cancelled) co_return;
        if (!sent && !self->head_.is_joined()) continue; // the next head gets it
        of.sent.insert(next->set_name());
        of.turns[next->run] = of.sent.size();
        if (!sent && code != errc::not_found && of.told.insert(trouble_of(sent.error())).second)
            logging::warn(
                "agent", "a step of a training is not kept at the head",
                {{"job", of.job}, {"step", next->set_name()}, {"why", sent.error().text()}});
    }
}

/// One file of a set, as far as this node lacks it.
SKEIN_INLINE task<void> step_sender::bring_file(run_store* from, std::shared_ptr<fetched_folder> to,
                                                package_entry entry, std::string id,
                                                std::uint32_t number) {
    auto looking = net::offload([to, entry] { return to->look_at(entry) == place_is::whole; });
    const bool is_there = co_await looking;
    if (is_there) co_return;
    auto fetching = as_result(fetch_file(from, to, std::move(id), number, entry));
    const auto came = co_await fetching;
    if (!came && came.error().code() == errc::not_found) { // nobody has the rest of it
        auto dropping = net::offload([to, entry] { to->begin(entry).drop(); });
        co_await dropping;
    }
    if (!came) throw came.error();
}

/// One file after the other, into a folder that is no step: only one that is whole gets the name of
/// one. What a broken link has left there is used by the next attempt, or removed by the training.
SKEIN_INLINE task<void> step_sender::bring_set(step_sender* self, const attempt* of,
                                               stored_set set) {
    head_runs<head_link> store(&self->head_, of->job, of->lease);
    auto finding = store.find(set.id);
    const auto all = co_await finding;
    const auto step = step_of_set(set.name);
    const auto inside = of->runs + "/" + step.run + "/";
    coming_step coming;
    coming.inside = inside + "checkpoints";
    coming.name = step.folder;
    coming.part = part_of_step(step.folder, set.id);
    const auto files = step_in_part(all, coming);
    auto opening = net::offload([to = of->folder] { return std::make_shared<fetched_folder>(to); });
    const auto to = co_await opening;
    bool has_step = false;
    for (std::uint32_t i = 0; i < files.entries.size(); ++i) {
        const auto entry = files.entries[i];
        if (!entry.path.starts_with(inside)) continue;
        has_step = has_step || entry.path.starts_with(coming.inside + "/" + coming.part + "/");
        auto bringing = as_result(bring_file(&store, to, entry, set.id, i));
        const auto brought = co_await bringing;
        if (brought) continue;
        const auto code = brought.error().code();
        if (code == errc::not_found || code == errc::corrupt || code == errc::mismatch) {
            auto dropping = net::offload([at = of->folder, coming] { drop_part(at, coming); });
            co_await dropping;
        }
        throw brought.error();
    }
    if (!has_step) co_return;
    auto placing =
        net::offload([at = of->folder, coming, files] { place_step(at, coming, files); });
    co_await placing;
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
    auto looking = net::offload([folder = of.folder, runs = of.runs] {
        return find_steps(folder, runs, std::numeric_limits<std::size_t>::max());
    });
    const auto there = co_await looking;
    for (const auto& one : there.steps) {
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
