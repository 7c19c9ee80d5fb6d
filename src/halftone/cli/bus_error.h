#pragma once

namespace halftone {

// From here on, a mapped file that was truncated or cannot be read ends the process with exit status 2 and one line that names it, instead
// of "Bus error".
void report_bus_errors();

}  // namespace halftone
