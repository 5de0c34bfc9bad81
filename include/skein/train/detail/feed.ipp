// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/feed.hpp>.

#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>
#include <skein/train/elastic_place.hpp>
#include <skein/wire/csv.hpp>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <poll.h>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE torch::Tensor column_tensor(const data::detail::finished_batch& made,
                                         std::size_t index) {
    if (!made.memory) return {};
    const auto& column = made.memory->layout().columns[index];
    std::vector<std::int64_t> sizes{static_cast<std::int64_t>(made.samples.size())};
    sizes.insert(sizes.end(), column.dims.begin(), column.dims.begin() + column.rank);
    static constexpr torch::ScalarType types[] = {torch::kUInt8,   torch::kInt8,  torch::kInt16,
                                                  torch::kInt32,   torch::kInt64, torch::kFloat32,
                                                  torch::kFloat64, torch::kBool};
    // The slot lives as long as the tensor does.
    return torch::from_blob(
        made.memory->column(index), sizes, [held = made.memory](void*) {},
        torch::TensorOptions(types[static_cast<std::size_t>(column.type)]));
}

SKEIN_INLINE data::loader_options loader_options_of(const context& ctx, const run_config& run,
                                                    const feed_options& how) {
    data::loader_options out;
    out.rank = ctx.rank();
    out.world_size = ctx.world_size();
    out.seed = run.seed;
    out.threads = how.threads;
    out.local_size = ctx.local_size();
    out.budget = how.budget;
    out.bad_rows = how.bad_rows;
    out.row_limit = how.row_limit;
    return out;
}

SKEIN_INLINE std::unique_ptr<data::detail::loader_core> make_loader(
    std::shared_ptr<const data::detail::row_program> program, const context& ctx,
    const run_config& run, const feed_options& how) {
    auto made = std::make_unique<data::detail::loader_core>(std::move(program),
                                                            loader_options_of(ctx, run, how));
    made->watch_stop([&ctx] {
        const auto* const place = ctx.elastic();
        return ctx.stop_requested() || (place != nullptr && place->job().stop_wanted());
    });
    return made;
}

SKEIN_INLINE data::detail::dealing dealing_of(const run_config& run, std::uint64_t size) {
    data::detail::dealing deal;
    deal.size = size;
    deal.global_batch = static_cast<std::uint64_t>(std::max<std::int64_t>(1, run.global_batch));
    deal.parts = static_cast<int>(std::max<std::int64_t>(1, run.accumulation));
    deal.drop_last = run.last == last_batch::drop;
    deal.epochs = static_cast<std::uint64_t>(std::max<std::int64_t>(0, run.epochs));
    return deal;
}

/// A field of left_out.csv, that a person may read.
[[nodiscard]] SKEIN_INLINE std::string field_text(std::string_view text) {
    return quoted_csv_field(printable(text));
}

/// Behind what is there; other ranks do the same.
[[nodiscard]] SKEIN_INLINE result<void> add_lines(disk& to, const std::string& path,
                                                  const std::string& lines) {
    const auto opened = to.open(path, open_mode::append);
    if (!opened) return opened.error();
    for (int tries = 0; tries < 100 && (*opened)->try_lock() == file_lock::busy; ++tries)
        ::poll(nullptr, 0, 1);
    return (*opened)->append(as_bytes(std::string_view(lines)));
}

SKEIN_INLINE void left_out_file::update(const data::detail::loader_core& of) {
    const auto fresh = of.left_out(seen_);
    if (fresh.empty() || !ctx_->last_run() || ctx_->last_run()->path.empty()) return;
    seen_ += fresh.size();
    const auto path = ctx_->last_run()->path + "/left_out.csv";
    const auto data = "," + field_text(of.program().describe());
    bool is_new = true;
    std::set<std::string> there; // of this run before it was resumed, and of other ranks
    posix_disk disk;
    if (const auto before = disk.read_whole(path)) {
        std::istringstream file(skein::to_string(byte_span(*before)));
        for (std::string line; std::getline(file, line); is_new = false)
            if (line.ends_with(data)) there.insert(line.substr(0, line.find(',')));
    }
    std::string lines = is_new ? "sample,name,why,data\n" : "";
    for (const auto& one : fresh)
        if (!there.contains(std::to_string(one.sample)))
            lines += fmt::format("{},{},{}{}\n", one.sample, field_text(one.name),
                                 field_text(one.why), data);
    const auto written = add_lines(disk, path, lines);
    if (written || std::exchange(failing_, true)) return;
    logging::warn("data", fmt::format("{} cannot be written: {}; training goes on", path,
                                      written.error().text()));
}

SKEIN_INLINE fed_places::fed_places(std::shared_ptr<const data::detail::row_program> program,
                                    const context& ctx, const run_config& run,
                                    const feed_options& how)
    : deal_(dealing_of(run, program->size())), left_out_(ctx) {
    core_ = make_loader(std::move(program), ctx, run, how);
    place_ = {.fingerprint = core_->fingerprint(), .seed = run.seed};
    deal_.rank = ctx.rank();
    deal_.world_size = ctx.world_size();
}

SKEIN_INLINE std::optional<data::detail::finished_batch> fed_places::next(
    const stream_share& share) {
    deal_.rank = share.rank;
    deal_.world_size = share.world_size;
    if (share.epoch > place_.epoch) {
        place_.epoch = share.epoch;
        place_.consumed = 0;
        part_ = 0;
    }
    if (part_ == 0) { // the plan of the run may be another one than that of the step before
        deal_.global_batch = share.global_batch;
        deal_.parts = share.parts;
    }
    const auto samples = deal_.samples_at(place_.consumed);
    if (samples == 0) return std::nullopt;
    if (share.global_batch != deal_.global_batch || part_ >= deal_.parts)
        throw error(errc::usage,
                    fmt::format("a pipeline that gives a step of {} samples in {} parts is asked "
                                "for {} in more",
                                deal_.global_batch, deal_.parts, share.global_batch))
            .with_hint("one Trainer at a time asks it, for whole steps");
    auto made =
        core_->next(data::detail::batch_request::of(deal_, place_.epoch, place_.consumed, part_));
    left_out_.update(*core_);
    part_ += 1;
    if (share.is_last) {
        place_.consumed += samples;
        part_ = 0;
    }
    return made;
}

SKEIN_INLINE void fed_places::restore(std::string_view saved) {
    place_ = place_.restored(saved, core_->program().describe());
    part_ = 0;
}

SKEIN_INLINE numbered_places::numbered_places(
    std::shared_ptr<const data::detail::row_program> program, const context& ctx,
    const run_config& run, const feed_options& how)
    : size_(program->size()), left_out_(ctx) {
    if (size_ == 0) return; // an evaluation set may be empty
    core_ = make_loader(std::move(program), ctx, run, how);
}

SKEIN_INLINE data::detail::finished_batch numbered_places::batch(
    std::span<const std::uint64_t> ids) const {
    for (std::size_t i = 0; i < ids.size(); ++i)
        if (ids[i] != ids[0] + i || ids[i] >= size_)
            throw error(errc::not_supported,
                        fmt::format("not supported: sample {} behind sample {} of {} of a pipeline "
                                    "that is read in order",
                                    ids[i], i > 0 ? ids[i - 1] : 0, size_))
                .with_hint("train on feed<>(), which shuffles as the pipeline says");
    // What follows in this evaluation is foreseen: batches of this size.
    data::detail::dealing deal;
    deal.size = size_;
    deal.global_batch = std::max<std::size_t>(1, ids.size());
    deal.epochs = 1;
    auto made = core_->next({deal, 0, ids[0], 0, ids[0], ids.size()});
    left_out_.update(*core_);
    return made;
}

} // namespace skein::train::detail
