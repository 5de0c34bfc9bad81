// SPDX-License-Identifier: Apache-2.0
// The scheduler of sched/scheduler.hpp against a naive model: random requests, waits, groups,
// places that come and go. The model keeps what was granted and asks after each step whether it may
// be so.
#include <skein/core/fnv.hpp>
#include <skein/core/philox.hpp>
#include <skein/sched/scheduler.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace scheduler_model {

using namespace skein;

struct placed_group {
    sched::group_request asked;
    std::vector<sched::place_id> at; ///< empty while it waits
};
struct known_place {
    sched::resources total;
    std::vector<std::string> labels;
    bool draining = false;
};
struct known_request {
    sched::request asked;
    std::string label;
    sched::place_id only;
    sched::placement_group_id group;
    enum { queued, running, waiting, resuming } state = queued;
    sched::grant got;
};

/// One random life of a scheduler.
class run {
public:
    explicit run(std::uint64_t seed)
        : random_(seed), most_places_(1 + seed % 8), scheduler_([&] {
              sched::scheduler_options o;
              o.policy = seed % 2 == 0 ? sched::placement::pack : sched::placement::spread;
              o.patience = static_cast<std::uint32_t>(1 + seed % 30);
              return o;
          }()) {
        for (int i = 0; i < 4; ++i) add_place();
    }

    void steps(int n) {
        for (int i = 0; i < n; ++i) {
            one();
            pump();
        }
    }
    /// Nothing new comes: all that some place could hold must be granted.
    void finish() {
        for (auto& [id, p] : places_) {
            p.draining = false;
            scheduler_.drain(id, false);
        }
        for (int round = 0; round < 5000; ++round) {
            pump();
            std::vector<sched::request_id> held;
            for (const auto& [id, r] : requests_)
                if (r.state != known_request::queued) held.push_back(id);
            if (held.empty()) break;
            for (const auto id : held) end(id);
        }
        pump();
        for (const auto& [id, r] : requests_) {
            INFO(scheduler_.why(id));
            CHECK_FALSE(feasible(r));
        }
        for (const auto& [number, g] : groups_) scheduler_.remove_group(number);
        for (const auto& p : scheduler_.places()) {
            CHECK(p.used.empty());
            CHECK(p.granted == 0);
        }
        CHECK(scheduler_.stats().granted == 0);
    }
    [[nodiscard]] std::uint64_t trace() const { return trace_.value(); }
    [[nodiscard]] int grants() const { return grants_; }
    [[nodiscard]] int over_total() const { return over_total_; }

private:
    std::uint64_t below(std::uint64_t n) { return random_.below(n); }
    template <class Map>
    typename Map::iterator any_of(Map& m) {
        return std::next(m.begin(), static_cast<std::ptrdiff_t>(below(m.size())));
    }

    void one() {
        switch (below(20)) {
        case 0: return add_place();
        case 1: return remove_place();
        case 2: return drain();
        case 3: return below(3) == 0 ? change_groups() : submit();
        case 4:
        case 5:
        case 6:
        case 7:
        case 8:
        case 9:
        case 10: return submit();
        case 11: return cancel();
        case 12:
        case 13:
        case 14: return wait();
        case 15: return below(2) == 0 ? leave() : keep();
        default: break;
        }
        if (const auto id = any_held()) end(id);
    }
    /// One that holds room, or none.
    sched::request_id any_held() {
        std::vector<sched::request_id> held;
        for (const auto& [id, r] : requests_)
            if (r.state != known_request::queued) held.push_back(id);
        return held.empty() ? sched::request_id() : held[below(held.size())];
    }
    void add_place() {
        if (places_.size() >= most_places_) return;
        static const std::vector<std::string> kinds{"cpu=2", "cpu=4,gpu=2", "cpu=8,memory=8",
                                                    "cpu=4,gpu=1,memory=4,ssd=1"};
        known_place p;
        p.total = sched::parse_resources(kinds[below(kinds.size())]).value();
        if (below(2) == 0) p.labels.push_back("a");
        if (below(3) == 0) p.labels.push_back("b");
        if (below(2) == 0) p.labels.push_back("node=" + std::to_string(below(3)));
        const sched::place_id id(++last_place_);
        scheduler_.add_place(id, "p" + std::to_string(last_place_), p.total, p.labels).value();
        places_.emplace(id, std::move(p));
    }
    void remove_place() {
        if (places_.empty()) return;
        const auto id = any_of(places_)->first;
        std::set<sched::request_id> lost, expected;
        for (const auto& e : scheduler_.remove_place(id)) lost.insert(e.id);
        for (const auto& [r, known] : requests_)
            if (known.state != known_request::queued && known.got.place == id) expected.insert(r);
        CHECK(lost == expected);
        for (const auto r : lost) requests_.erase(r);
        places_.erase(id);
        for (auto& [number, g] : groups_)
            if (std::find(g.at.begin(), g.at.end(), id) != g.at.end())
                std::replace(g.at.begin(), g.at.end(), id, sched::place_id());
    }
    void drain() {
        if (places_.empty()) return;
        const auto p = any_of(places_);
        p->second.draining = below(2) == 0;
        scheduler_.drain(p->first, p->second.draining);
        if (p->second.draining && below(2) == 0) scheduler_.move_bundles(p->first);
    }
    /// Some that are asked to end stay.
    void leave() {
        if (const auto id = any_held()) CHECK(scheduler_.set_leaving(id, below(4) != 0));
    }
    /// For whoever waits. What is kept free goes to nobody else: check_nothing_fits().
    void keep() {
        if (!groups_.empty() && below(2) == 0) {
            (void)scheduler_.keep_room(any_of(groups_)->first);
        } else if (!requests_.empty()) {
            const auto r = any_of(requests_);
            if (scheduler_.keep_room(r->first)) CHECK(r->second.state == known_request::queued);
        }
    }
    void change_groups() {
        if (groups_.size() >= 3 || (below(2) == 0 && !groups_.empty())) {
            const auto g = any_of(groups_)->first;
            for (const auto& e : scheduler_.remove_group(g)) requests_.erase(e.id);
            groups_.erase(g);
            return;
        }
        placed_group g;
        g.asked.job = job_id(1 + below(3));
        g.asked.strategy = static_cast<sched::group_strategy>(below(4));
        const auto count = 1 + below(3);
        for (std::uint64_t i = 0; i < count; ++i) g.asked.bundles.push_back(demand());
        const auto id = scheduler_.create_group(g.asked).value();
        groups_.emplace(id, std::move(g));
    }
    sched::resources demand() {
        static const std::vector<std::string> kinds{
            "cpu=1",   "cpu=1",           "cpu=2", "cpu=4",          "cpu=0.5",
            "gpu=0.5", "gpu=1,cpu=1",     "gpu=2", "memory=2,cpu=1", "ssd=1",
            "",        "gpu=0.3,cpu=0.1", "cpu=16"};
        return sched::parse_resources(kinds[below(kinds.size())]).value();
    }
    void submit() {
        known_request r;
        r.asked.job = job_id(1 + below(3));
        r.asked.demand = demand();
        r.asked.tag = ++last_tag_;
        r.asked.for_life = below(4) == 0;
        const auto kind = below(8);
        if (kind == 0 && !places_.empty()) {
            r.only = any_of(places_)->first;
            r.asked.where = sched::constraint::on(r.only);
        } else if (kind == 1) {
            r.label = below(2) == 0 ? "a" : "b";
            r.asked.where = sched::constraint::labelled(r.label);
        } else if (kind == 2) {
            r.asked.where = sched::constraint::spread();
        } else if (kind == 3 && !groups_.empty()) {
            r.group = any_of(groups_)->first;
            r.asked.where = sched::constraint::in(r.group);
        }
        const auto id = scheduler_.submit(r.asked).value();
        requests_.emplace(id, std::move(r));
    }
    void cancel() {
        if (requests_.empty()) return;
        const auto r = any_of(requests_);
        CHECK(scheduler_.cancel(r->first) == (r->second.state == known_request::queued));
        if (r->second.state == known_request::queued) requests_.erase(r);
    }
    void wait() {
        const auto id = any_held();
        if (!id) return;
        auto& r = requests_.at(id);
        if (r.state == known_request::running) {
            CHECK(scheduler_.wait_begin(id));
            r.state = known_request::waiting;
        } else if (r.state == known_request::waiting) {
            const bool at_once = scheduler_.wait_end(id);
            if (at_once) check_resumed(id, r);
            r.state = at_once ? known_request::running : known_request::resuming;
        }
    }
    void end(sched::request_id id) {
        const bool held = requests_.at(id).state != known_request::queued;
        CHECK(scheduler_.release(id) == held);
        if (held) requests_.erase(id);
    }

    void pump() {
        std::vector<sched::grant> got;
        scheduler_.take_grants(got);
        std::vector<sched::notice> said;
        scheduler_.take_notices(said);
        for (const auto& n : said) {
            if (n.what == sched::notice::kind::refused) requests_.erase(n.id);
            if (!groups_.contains(n.group)) continue;
            auto& g = groups_.at(n.group);
            if (n.what == sched::notice::kind::group_broken) g.at = n.bundles;
            if (n.what != sched::notice::kind::group_placed) continue;
            g.at = n.bundles;
            check_group(g);
        }
        for (const auto& g : got) {
            ++grants_;
            for (const auto v : {g.id.value(), g.place.value(), g.gpus.bits(), g.tag})
                trace_.number(v);
            REQUIRE(requests_.contains(g.id));
            auto& r = requests_.at(g.id);
            CHECK(g.tag == r.asked.tag);
            if (g.resumed) {
                CHECK(r.state == known_request::resuming);
                check_resumed(g.id, r);
            } else {
                check_new(g, r);
                r.got = g;
            }
            r.state = known_request::running;
        }
        for (const auto& [id, p] : places_) check_place(id, p);
        check_nothing_fits();
    }
    void check_new(const sched::grant& g, const known_request& r) {
        CHECK(r.state == known_request::queued);
        REQUIRE(places_.contains(g.place));
        const auto& p = places_.at(g.place);
        CHECK_FALSE(p.draining);
        if (r.only) CHECK(g.place == r.only);
        if (!r.label.empty())
            CHECK(std::find(p.labels.begin(), p.labels.end(), r.label) != p.labels.end());
        CHECK((g.bundle >= 0) == static_cast<bool>(r.group));
        if (r.group)
            CHECK(groups_.at(r.group).at.at(static_cast<std::size_t>(g.bundle)) == g.place);
        // A new grant never goes over the total; the model looks before it knows of this one.
        auto cpus = r.asked.demand.cpu;
        auto total = p.total.cpu;
        if (r.group) {
            total = groups_.at(r.group).asked.bundles[static_cast<std::size_t>(g.bundle)].cpu;
            cpus += cpus_in(g.place, r.group, g.bundle);
        } else {
            cpus += cpus_on(g.place);
        }
        if (r.asked.demand.cpu) CHECK(cpus <= total);
    }
    /// It may go over the total only where nobody else holds cpus who will end or wait.
    void check_resumed(sched::request_id id, const known_request& r) {
        const auto used =
            r.group ? cpus_in(r.got.place, r.group, r.got.bundle) : cpus_on(r.got.place);
        const auto total =
            r.group ? groups_.at(r.group).asked.bundles[static_cast<std::size_t>(r.got.bundle)].cpu
                    : places_.at(r.got.place).total.cpu;
        if (!r.asked.demand.cpu || used + r.asked.demand.cpu <= total) return;
        ++over_total_;
        for (const auto& [other, o] : requests_) {
            const bool there = o.got.place == r.got.place && o.group == r.group &&
                               o.got.bundle == r.got.bundle && other != id;
            if (there && o.state == known_request::running)
                CHECK((o.asked.for_life || !o.asked.demand.cpu));
        }
    }
    sched::amount cpus_in(sched::place_id p, sched::placement_group_id g, int bundle) const {
        sched::amount sum;
        for (const auto& [id, r] : requests_)
            if (r.state == known_request::running && r.got.place == p && r.group == g &&
                r.got.bundle == bundle)
                sum += r.asked.demand.cpu;
        return sum;
    }
    sched::amount cpus_on(sched::place_id p) const {
        sched::amount sum;
        for (const auto& [id, r] : requests_)
            if (r.state == known_request::running && r.got.place == p && !r.group)
                sum += r.asked.demand.cpu;
        for (const auto& [id, g] : groups_)
            for (std::size_t b = 0; b < g.at.size(); ++b)
                if (g.at[b] == p) sum += g.asked.bundles[b].cpu;
        return sum;
    }
    /// What is not cpu never goes over the total; no gpu is shared beyond one.
    void check_place(sched::place_id id, const known_place& p) {
        sched::resources sum;
        std::map<int, sched::amount> gpus;
        for (const auto& [number, r] : requests_) {
            if (r.state == known_request::queued || r.got.place != id) continue;
            const auto gpu = r.asked.demand.gpu;
            int count = 0;
            for (int i = 0; i < sched::gpu_set::most; ++i) {
                if (!r.got.gpus.has(i)) continue;
                ++count;
                gpus[i] += gpu > sched::amount(1) ? sched::amount(1) : gpu;
            }
            CHECK(count == (gpu.is_whole() ? gpu.in_steps() / sched::amount::steps : 1));
            if (!r.group) sum += r.asked.demand;
        }
        for (const auto& [number, g] : groups_)
            for (std::size_t b = 0; b < g.at.size(); ++b)
                if (g.at[b] == id) sum += g.asked.bundles[b];
        sum.cpu = 0;
        CHECK(fits(sum, p.total));
        for (const auto& [index, share] : gpus) CHECK(share <= sched::amount(1));
    }
    static void check_group(const placed_group& g) {
        REQUIRE(g.at.size() == g.asked.bundles.size());
        std::set<sched::place_id> used;
        for (const auto p : g.at) {
            CHECK(p);
            used.insert(p);
        }
        if (g.asked.strategy == sched::group_strategy::strict_pack) CHECK(used.size() == 1);
        if (g.asked.strategy == sched::group_strategy::strict_spread)
            CHECK(used.size() == g.at.size());
    }
    /// Nothing that is queued fits on a place that is not kept free for another: of cpus, where it
    /// is exact.
    void check_nothing_fits() {
        for (const auto& info : scheduler_.places()) {
            if (info.draining || info.reserved) continue;
            bool resuming = false;
            for (const auto& [id, r] : requests_)
                resuming |= r.state == known_request::resuming && r.got.place == info.id;
            if (resuming) continue;
            for (const auto& [id, r] : requests_) {
                if (r.state != known_request::queued || r.group || r.only || !r.label.empty() ||
                    r.asked.demand.gpu)
                    continue;
                auto all = info.used;
                all += r.asked.demand;
                const bool ok =
                    fits(all, info.total) || (!r.asked.demand.cpu && r.asked.demand.empty());
                INFO(scheduler_.why(id));
                CHECK_FALSE(ok);
            }
        }
    }
    [[nodiscard]] bool feasible(const known_request& r) const {
        if (r.group) {
            const auto& g = groups_.at(r.group);
            const bool is_placed = !g.at.empty() && std::find(g.at.begin(), g.at.end(),
                                                              sched::place_id()) == g.at.end();
            return is_placed &&
                   std::any_of(g.asked.bundles.begin(), g.asked.bundles.end(), [&](const auto& b) {
                       return fits(r.asked.demand, b) &&
                              (b.gpu <= sched::amount(1) || r.asked.demand.gpu.is_whole());
                   });
        }
        return std::any_of(places_.begin(), places_.end(), [&](const auto& entry) {
            auto free = entry.second.total; // groups hold what they have for good
            for (const auto& [number, g] : groups_)
                for (std::size_t b = 0; b < g.at.size(); ++b)
                    if (g.at[b] == entry.first) free -= g.asked.bundles[b];
            if (r.only && entry.first != r.only) return false;
            const auto& l = entry.second.labels;
            if (!r.label.empty() && std::find(l.begin(), l.end(), r.label) == l.end()) return false;
            const bool whole = r.asked.demand.gpu.is_whole() && free.gpu.is_whole();
            return fits(r.asked.demand, free) && (!r.asked.demand.gpu || whole);
        });
    }

    philox_stream random_;
    std::size_t most_places_;
    sched::scheduler scheduler_;
    std::map<sched::place_id, known_place> places_;
    std::map<sched::request_id, known_request> requests_;
    std::map<sched::placement_group_id, placed_group> groups_;
    std::uint64_t last_place_ = 0, last_tag_ = 0;
    int grants_ = 0, over_total_ = 0;
    fnv1a trace_;
};

} // namespace scheduler_model

TEST_CASE("random lives of a scheduler keep its promises, and equal seeds give equal grants",
          "[rt][scheduler]") {
    int grants = 0, over_total = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        INFO("seed " << seed);
        scheduler_model::run first(seed);
        first.steps(300);
        first.finish();
        grants += first.grants();
        over_total += first.over_total();
        if (seed % 8 != 0) continue;
        scheduler_model::run second(seed);
        second.steps(300);
        second.finish();
        CHECK(first.trace() == second.trace());
    }
    CHECK(grants > 2000);
    CHECK(over_total > 0); // the rule of waiting was needed
}
