#pragma once
#include <string>

#include "halftone/parallel/schedule.h"

namespace halftone::parallel {

// One row per rank, time to the right, by simulate().
std::string schedule_text(const Schedule& schedule, const Timeline& timeline);
std::string schedule_svg(const Schedule& schedule, const Timeline& timeline, const std::string& title);

}  // namespace halftone::parallel
