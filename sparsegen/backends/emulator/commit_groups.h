// What is on its way in groups, as cp.async and the stores of boxes have them.
#pragma once

#include <utility>
#include <vector>

namespace sparsegen::emulator {

/// One thread's copies or stores, in commit groups; `Pending` has `land()`.
template <class Pending>
class CommitGroups {
public:
    void issue(Pending pending) { pending_.push_back({std::move(pending), open_group_}); }
    void commit() { ++open_group_; }
    bool empty() const { return pending_.empty(); }

    /// Lands all but the `pending_groups` youngest groups that were committed.
    void wait(int pending_groups) {
        const int first_pending = open_group_ - pending_groups;
        std::erase_if(pending_, [&](const Grouped& grouped) {
            const bool lands = grouped.group < first_pending && grouped.group < open_group_;
            if (lands) {
                grouped.pending.land();
            }
            return lands;
        });
    }

    void clear() {
        pending_.clear();
        open_group_ = 0;
    }

    /// All that has not landed, which leaves this list; for a barrier that is to land it.
    std::vector<Pending> take_all() {
        std::vector<Pending> taken;
        for (Grouped& grouped : pending_) {
            taken.push_back(std::move(grouped.pending));
        }
        pending_.clear();
        return taken;
    }

private:
    struct Grouped {
        Pending pending;
        int group;
    };
    std::vector<Grouped> pending_;
    int open_group_ = 0;  // groups below it are committed
};

}  // namespace sparsegen::emulator
