# frozen_string_literal: true

require 'spec_helper'

describe 'Common::Again::Where' do
  it { is_expected.to allow_values({ 'role' => 'web', 'uptime_seconds' => 7, 'is_virtual' => true }, { 'os.name' => '~x' }) }
  it { is_expected.to allow_values(['role=web'], ['uptime>10', 'role != db', 'hostname=~^web']) }
  it { is_expected.not_to allow_values({}, [], 'role=web', ['role'], ['=x'], ["role=a\nb"], { 'a b' => 'x' }, { 'a=' => 'x' }, { 'a' => ['x'] }, { 'a' => "x\ny" }) }
end
