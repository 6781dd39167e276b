# What the fact costs in a puppet process: the median of many, in milliseconds, beside that of starting /bin/true from the same process.
#
# usage: fact.rb FACT
require 'puppet'
require 'facter'

Puppet.initialize_settings([])
load ARGV.fetch(0)

def median(times)
  spent = Array.new(times) do
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
  end
  (spent.sort[times / 2] * 1000).round(2)
end

2.times { AgainFact.value }
puts median(30) { AgainFact.value }
puts median(30) { Process.wait(Process.spawn('/bin/true', in: File::NULL, out: File::NULL, err: File::NULL)) }
puts AgainFact.value['version'].inspect
ENV['AGAIN_BIN'] = '/nonexistent'
puts median(30) { AgainFact.value }
puts AgainFact.value['paths'].size
