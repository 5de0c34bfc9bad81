// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks agree on an id, then connect.

#include <skein/dist/detail/own_models.ipp>
#include <skein/net/loop_thread.hpp>
#include <skein/spmd/rendezvous.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstring>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::dist {

namespace detail {

/// What a rank tells the others before they connect.
struct nccl_card {
    std::string refusal; ///< not empty: it has no device, and why
    std::string host;
    std::int32_t device = 0, version = 0;
    byte_buffer id; ///< of rank 0
};

SKEIN_INLINE nccl_card nccl_card_of(const comm_site& site, const std::optional<nccl_place>& place,
                                    const std::optional<error>& why) {
    nccl_card card;
    if (!place) {
        card.refusal = bounded_text(why->what());
        return card;
    }
    card.host = site.world.host();
    card.device = place->where.device;
    card.version = place->domain->nccl().version_number;
    return card;
}

/// The same on every rank: each has all cards.
SKEIN_INLINE void compare_nccl_cards(const comm_site& site, const std::vector<nccl_card>& cards) {
    for (int r = 0; r < site.ranks(); ++r) {
        const nccl_card& card = cards[static_cast<std::size_t>(r)];
        if (!card.refusal.empty()) {
            throw error(errc::refused, fmt::format("rank {} has no place in a communicator over "
                                                   "NCCL",
                                                   site.label(r)))
                .with_cause(card.refusal);
        }
        if (card.version != cards.front().version) {
            throw error(errc::mismatch,
                        fmt::format("rank {} has NCCL {}, rank {} has {}", site.label(r),
                                    nccl_version_text(card.version), site.label(0),
                                    nccl_version_text(cards.front().version)))
                .with_hint("install the same one on all hosts");
        }
        for (int other = 0; other < r; ++other) {
            const nccl_card& before = cards[static_cast<std::size_t>(other)];
            if (before.host != card.host || before.device != card.device) continue;
            throw error(errc::invalid_argument,
                        fmt::format("rank {} and rank {} are both on cuda:{} of {}",
                                    site.label(other), site.label(r), card.device, card.host))
                .with_hint("start at most one rank for each device of a host");
        }
    }
}

SKEIN_INLINE task<void> connect_nccl(std::unique_ptr<communicator>* to, nccl_place place,
                                     nccl_unique_id id, int rank, int ranks,
                                     collective_options connecting, time_span deadline) {
    auto joining = nccl_communicator::connect(place.domain, id, rank, ranks, std::move(place.where),
                                              connecting);
    auto made = co_await std::move(joining);
    made->set_deadline(deadline);
    *to = std::move(made);
}

SKEIN_INLINE std::unique_ptr<communicator> make_nccl(
    const comm_site& site, const std::function<nccl_place(const comm_site&)>& place_of) {
    std::optional<nccl_place> place;
    std::optional<error> why;
    nccl_unique_id id{};
    nccl_card mine;
    try {
        place = place_of(site);
        mine = nccl_card_of(site, place, why);
        if (site.world.rank() == 0) {
            nccl_check(place->domain->nccl(), place->domain->nccl().unique_id(&id), "an id");
            mine.id = to_buffer(byte_span(reinterpret_cast<const std::byte*>(&id), sizeof id));
        }
    } catch (...) {
        why = to_error(std::current_exception());
        place.reset();
        mine = nccl_card_of(site, place, why);
    }
    const auto blobs = site.world.exchange(site.key + "/nccl", wire::encode(mine));
    if (why) throw *why; // the others have read it
    std::vector<nccl_card> cards;
    for (const auto& blob : blobs) cards.push_back(wire::decode<nccl_card>(blob).value());
    compare_nccl_cards(site, cards);
    if (cards.front().id.size() != sizeof id)
        throw error(errc::malformed, fmt::format("an id of {} bytes", cards.front().id.size()));
    std::memcpy(&id, cards.front().id.data(), sizeof id);

    place->where.labels = site.options.labels;
    // A rank that dies now must not be waited for.
    const auto watching = site.world.on_lost([domain = place->domain](int lost, const error& e) {
        domain->abort_all(lost_error(lost, e));
    });
    collective_options connecting = site.options.limits;
    connecting.deadline = site.options.connect_deadline;
    std::unique_ptr<communicator> made;
    site.worker.run([&] {
        return connect_nccl(&made, *place, id, site.world.rank(), site.ranks(), connecting,
                            site.options.limits.deadline);
    });
    return made;
}

/// With what automatic would take for the host's buffers. That one is made last: a rank that has no
/// place over NCCL says so before.
SKEIN_INLINE std::unique_ptr<communicator> make_nccl_pair(
    const comm_site& site, const std::function<nccl_place(const comm_site&)>& place_of) {
    auto there = make_nccl(site, place_of);
    std::unique_ptr<communicator> here;
    std::optional<error> why;
    try {
        here = make_automatic(site);
        if (here->calls())
            throw error(errc::not_supported,
                        fmt::format("not supported: {} beside NCCL: it compares no calls of its "
                                    "ranks, either",
                                    here->name()))
                .with_hint("choose \"host\"");
    } catch (...) {
        why = to_error(std::current_exception());
    }
    if (!why) return std::make_unique<paired_communicator>(std::move(there), std::move(here));
    for (auto* const each : {there.get(), here.get()}) {
        if (each == nullptr) continue;
        each->abort(*why);
        site.worker.run([each] { return each->close(); });
    }
    throw *why;
}

/// The libraries, opened when the first communicator is made.
SKEIN_INLINE std::shared_ptr<nccl_domain> open_nccl_domain(std::shared_ptr<device_math> math) {
    auto cuda = load_cuda_runtime().value();
    (void)cuda_devices(cuda).value();
    return std::make_shared<nccl_domain>(std::move(cuda), load_nccl().value(), std::move(math));
}

} // namespace detail

SKEIN_INLINE comm_model nccl_model(std::function<nccl_place(const comm_site&)> place) {
    comm_model model;
    model.name = "nccl";
    model.fits = [](const comm_site& site) {
        return fits_by_name_alone(site, "ranks that have a device each");
    };
    model.make = [place = std::move(place)](const comm_site& site) {
        return detail::make_nccl_pair(site, place);
    };
    return model;
}

SKEIN_INLINE void add_nccl_model(std::shared_ptr<device_math> math) {
    struct opened {
        std::mutex guard;
        std::shared_ptr<nccl_domain> domain;
    };
    add_comm_model(nccl_model(
        [math = std::move(math), kept = std::make_shared<opened>()](const comm_site& site) {
            const std::lock_guard lock(kept->guard);
            if (!kept->domain) kept->domain = detail::open_nccl_domain(math);
            nccl_place place;
            place.domain = kept->domain;
            place.where.device = site.world.local_rank();
            require_device(place.domain->cuda(), place.where.device);
            return place;
        }));
}

} // namespace skein::dist
